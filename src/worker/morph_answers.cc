#include "worker/morph_answers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace protean {

void MorphAnswers::expect(MorphId id, std::vector<int> devices) {
  const std::lock_guard lock(mutex_);
  Waiting waiting;
  waiting.not_ready = waiting.not_done = waiting.devices = std::move(devices);
  check(steps_.emplace(id, std::move(waiting)).second, "a morph's step is prepared once");
}

std::vector<int> MorphAnswers::commit(MorphId id) {
  const std::lock_guard lock(mutex_);
  const auto found = steps_.find(id);
  check(found != steps_.end(), "what is committed was prepared and not aborted");
  std::vector<int> devices = found->second.devices;
  found->second.committed = true;
  if (devices.empty()) {
    steps_.erase(found);
  }
  return devices;
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

std::optional<MorphReady> MorphAnswers::ready(MorphReady answer, int device) {
  const std::lock_guard lock(mutex_);
  const auto found = steps_.find(answer.id);
  if (found == steps_.end() || found->second.failed) {
    return std::nullopt;  // given up meanwhile
  }
  Waiting& waiting = found->second;
  if (std::erase(waiting.not_ready, device) == 0) {
    return std::nullopt;  // the device was given up meanwhile
  }
  if (answer.failure) {
    waiting.failed = true;
    return answer;
  }
  waiting.remark = waiting.remark.empty() ? std::move(answer.remark) : std::move(waiting.remark);
  if (!waiting.not_ready.empty()) {
    return std::nullopt;
  }
  answer.remark = waiting.remark;
  return answer;
}

bool MorphAnswers::done(MorphId id, int device) {
  const std::lock_guard lock(mutex_);
  const auto found = steps_.find(id);
  if (found == steps_.end() || std::erase(found->second.not_done, device) == 0) {
    return false;  // the device was given up meanwhile
  }
  const bool all = found->second.not_done.empty();
  if (all) {
    steps_.erase(found);
  }
  return all;
}

MorphAnswers::Answered MorphAnswers::give_up(const std::vector<int>& devices) {
  const std::lock_guard lock(mutex_);
  Answered answered;
  for (auto next = steps_.begin(); next != steps_.end();) {
    auto& [id, waiting] = *next;
    const auto remove = [&](std::vector<int>& from) {
      return std::erase_if(from, [&](int device) {
        return std::find(devices.begin(), devices.end(), device) != devices.end();
      });
    };
    remove(waiting.devices);
    if (remove(waiting.not_ready) > 0 && waiting.not_ready.empty() && !waiting.failed) {
      answered.ready.push_back({.id = id, .failure = std::nullopt, .remark = waiting.remark});
    }
    const bool done = remove(waiting.not_done) > 0 && waiting.not_done.empty() && waiting.committed;
    if (done) {
      answered.done.push_back(id);
    }
    next = done ? steps_.erase(next) : std::next(next);
  }
  return answered;
}

}  // namespace protean
