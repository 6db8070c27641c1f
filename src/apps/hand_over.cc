#include "apps/hand_over.h"

#include <utility>

#include "contract/precision.h"

namespace protean {

Status check_hand_over(const OpenModel& before, const OpenModel& after, bool awake) {
  if (before.files->generation != after.files->generation) {
    return make_error(ErrorCode::kUnavailable, "its files have other defaults for generation now");
  }
  if (!awake) {
    return {};
  }
  const KvForm& now = before.replica.sizing.form.kv;
  const KvForm& then = after.replica.sizing.form.kv;
  if (now.precision != then.precision) {
    return make_error(ErrorCode::kUnavailable, "KV goes from {} to {}", to_string(now.precision),
                      to_string(then.precision));
  }
  if (now.block_tokens != then.block_tokens) {
    return make_error(ErrorCode::kUnavailable, "blocks of KV go from {} to {} tokens",
                      now.block_tokens, then.block_tokens);
  }
  if (!before.files->current().ok()) {
    return make_error(ErrorCode::kUnavailable,
                      "its files were written or replaced after they were opened");
  }
  return {};
}

Result<LoadedWorkers> load_workers_of(OpenModel& model, const LoadHooks& hooks) {
  const TimeNs began_ns = steady_now_ns();
  auto loaded = load_workers(model.replica, {*model.files->checkpoint, hooks});
  model.load_s = static_cast<double>(steady_now_ns() - began_ns) / static_cast<double>(kNsPerS);
  return loaded;
}

ServedModel take_over(OpenModel& model, OpenModel next) {
  ServedModel served = std::move(next.hosted.model);
  served.tokenizer = model.files->tokenizer.get();
  served.chat_template = &model.files->chat_template;
  served.formats = model.hosted.model.formats;  // made for this tokenizer
  if (model.replica.memory != nullptr) {
    model.replica.memory->leave();
  }
  next.replica.turns = std::move(model.replica.turns);  // the service shows and sets its priority
  model.asked = std::move(next.asked);
  model.setting = std::move(next.setting);
  model.plan = std::move(next.plan);
  model.report = std::move(next.report);
  model.load_s = next.load_s;
  model.rest.reset();
  model.files->take_weights(std::move(*next.files));
  model.replica = std::move(next.replica);
  model.hosted.model = served;
  return served;
}

}  // namespace protean
