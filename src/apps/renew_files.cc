#include "apps/renew_files.h"

#include <utility>

#include "base/log.h"

namespace protean {

Status check_same_model(const OpenModel& model, const ModelFiles& files) {
  return same_but_for_weights(*model.files, files)
             ? Status()
             : make_error(
                   ErrorCode::kInvalidArgument,
                   "{} is another model now: remove {} and deploy it again, or put its files back",
                   model.setting.model.model, name_of(model));
}

Status renew_files(OpenModel& model) {
  if (model.files->checkpoint->unchanged().ok()) {
    return {};
  }
  const ModelOptions& options = model.setting.model;
  auto renewed = open_model_files(options);
  if (!renewed.ok()) {
    return make_error(renewed.error().code,
                      "its files were written after they were opened, and cannot be opened again: "
                      "{}",
                      renewed.error().message);
  }
  if (Status same = check_same_model(model, *renewed); !same.ok()) {
    return same;
  }
  ReplicaOptions& replica = model.replica;
  if (replica.morph) {
    auto variants = open_variants(options, model.setting.morph, *renewed, replica.sizing.form);
    if (!variants.ok()) {
      return variants.error();
    }
    replica.variants = *std::move(variants);
  }
  model.files->checkpoint = std::move(renewed->checkpoint);
  log::info("{}: its files were written after they were opened, and are opened again",
            name_of(model));
  return {};
}

}  // namespace protean
