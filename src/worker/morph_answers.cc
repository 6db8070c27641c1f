#include "worker/morph_answers.h"

#include <utility>

#include "base/check.h"

namespace protean {

void MorphAnswers::expect(MorphId id, std::vector<int> devices) {
  const std::lock_guard lock(mutex_);
  Waiting waiting;
  waiting.devices = std::move(devices);
  check(steps_.emplace(id, std::move(waiting)).second, "a morph's step is prepared once");
}

std::vector<int> MorphAnswers::devices_of(MorphId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = steps_.find(id);
  return found == steps_.end() ? std::vector<int>() : found->second.devices;
}

std::vector<int> MorphAnswers::drop(MorphId id) {
  const std::lock_guard lock(mutex_);
  const auto found = steps_.find(id);
  if (found == steps_.end()) {
    return {};
  }
  std::vector<int> devices = std::move(found->second.devices);
  steps_.erase(found);
  return devices;
}

std::optional<MorphReady> MorphAnswers::ready(MorphReady answer) {
  const std::lock_guard lock(mutex_);
  const auto found = steps_.find(answer.id);
  if (found == steps_.end() || found->second.failed) {
    return std::nullopt;  // given up meanwhile
  }
  Waiting& waiting = found->second;
  if (answer.failure) {
    waiting.failed = true;
    return answer;
  }
  waiting.remark = waiting.remark.empty() ? std::move(answer.remark) : std::move(waiting.remark);
  if (++waiting.ready < waiting.devices.size()) {
    return std::nullopt;
  }
  answer.remark = waiting.remark;
  return answer;
}

bool MorphAnswers::done(MorphId id) {
  const std::lock_guard lock(mutex_);
  const auto found = steps_.find(id);
  check(found != steps_.end(), "what is done was prepared");
  const bool all = ++found->second.done == found->second.devices.size();
  if (all) {
    steps_.erase(found);
  }
  return all;
}

}  // namespace protean
