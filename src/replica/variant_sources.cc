#include "replica/variant_sources.h"

#include <cstddef>
#include <utility>

#include "model/checkpoint.h"
#include "replica/model_place.h"

namespace protean {

Result<std::map<Precision, VariantSource>> variant_sources(const std::vector<std::string>& texts) {
  std::map<Precision, VariantSource> sources;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--variant {} is not PRECISION=MODEL, such as w4=model-awq", text);
    }
    const auto precision = parse_precision(text.substr(0, equals));
    if (!precision.ok()) {
      return make_error(precision.error().code, "--variant: {}", precision.error().message);
    }
    const auto path = locate_model(text.substr(equals + 1));
    if (!path.ok()) {
      return path.error();
    }
    auto checkpoint = open_checkpoint(*path);
    if (!checkpoint.ok()) {
      return checkpoint.error();
    }
    if (!sources.emplace(weight_only(*precision), VariantSource{*std::move(checkpoint), *path})
             .second) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--variant {}: {} has two sources, give one of them", text,
                        to_string(weight_only(*precision)));
    }
  }
  return sources;
}

}  // namespace protean
