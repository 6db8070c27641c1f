// Any JSON object is either refused as a config or gives a valid spec.

#include <cstdint>

#include "base/check.h"
#include "model/hf_config.h"
#include "model/json_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace protean;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto object = parse_json_object(text, "fuzz.json");
  if (!object) {
    return 0;
  }
  auto config = parse_hf_config(*object, "fuzz.json");
  if (!config) {
    check(config.error().message.find('\n') == std::string::npos, "errors are one line");
    return 0;
  }
  check(validate(config->spec).ok(), "a spec that is handed over is valid");
  (void)parse_generation_config(*object, "fuzz.json", config->spec, config->generation);
  return 0;
}
