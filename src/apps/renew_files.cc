#include "apps/renew_files.h"

#include <utility>

#include "base/log.h"

namespace protean {
namespace {

// Fails if these files are of another model than the one that is open, or are to be used in another
// way.
Status check_same_use(const OpenModel& model, const ModelFiles& files) {
  if (Status same = check_same_model(model, files); !same.ok()) {
    return same;
  }
  return model.files->generation == files.generation
             ? Status()
             : make_error(ErrorCode::kInvalidArgument,
                          "{} has other defaults for generation now (generation_config.json, or "
                          "its tokens that end an answer): remove {} and deploy it again, or put "
                          "its files back",
                          model.setting.model.model, name_of(model));
}

}  // namespace

Status check_same_model(const OpenModel& model, const ModelFiles& files) {
  return same_but_for_weights(*model.files, files)
             ? Status()
             : make_error(
                   ErrorCode::kInvalidArgument,
                   "{} is another model now: remove {} and deploy it again, or put its files back",
                   model.setting.model.model, name_of(model));
}

Status renew_files(OpenModel& model) {
  const Status current = model.files->current();
  if (current.ok()) {
    return {};
  }
  const ModelOptions& options = model.setting.model;
  auto renewed = open_model_files(options);
  const bool gone = current.error().code == ErrorCode::kNotFound && !renewed.ok() &&
                    renewed.error().code == ErrorCode::kNotFound;
  if (gone && model.files->checkpoint->unchanged().ok()) {
    log::warning("{}: its files are gone, and are read as they were: {}", name_of(model),
                 renewed.error().message);
    return {};
  }
  if (!renewed.ok()) {
    return make_error(renewed.error().code,
                      "its files were written or replaced after they were opened, and cannot be "
                      "opened again: {}",
                      renewed.error().message);
  }
  if (Status same = check_same_use(model, *renewed); !same.ok()) {
    return same;
  }
  if (model.replica.morph) {
    if (Status kept = renew_variants(options, model.setting.morph, *renewed, model.replica);
        !kept.ok()) {
      return kept;
    }
  }
  log::info("{}: its files were written or replaced after they were opened, and are opened again",
            name_of(model));
  model.files->take_weights(*std::move(renewed));
  return {};
}

}  // namespace protean
