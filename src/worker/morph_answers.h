#pragma once

#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "ports/event.h"

namespace protean {

// Makes one answer to a morph step of the answers of all devices that it concerns: it is ready when
// it is ready on all, it fails with the first failure, and it is done when all are done. Any thread
// may call.
class MorphAnswers {
 public:
  // A step was given to these devices to prepare.
  void expect(MorphId id, std::vector<int> devices);
  // The devices that a step concerns; none if it was dropped.
  std::vector<int> devices_of(MorphId id) const;
  // Forgets a step that is given up or has failed, and returns its devices.
  std::vector<int> drop(MorphId id);

  // A device's answer to prepare(). Returns the whole step's answer with the last one, or with the
  // first failure; later answers to a failed step are ignored.
  std::optional<MorphReady> ready(MorphReady answer);
  // A device's answer to commit(). Returns true with the last one.
  bool done(MorphId id);

 private:
  struct Waiting {
    std::vector<int> devices;
    std::size_t ready = 0;
    std::size_t done = 0;
    std::string remark;
    bool failed = false;
  };
  mutable std::mutex mutex_;
  std::unordered_map<MorphId, Waiting> steps_;
};

}  // namespace protean
