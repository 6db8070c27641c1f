#pragma once

#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "ports/event.h"

namespace protean {

// Makes one answer to a morph step of the answers of all devices that it concerns: it is ready when
// it is ready on all, it fails with the first failure, and it is done when all are done. Devices
// that are given up answer nothing; a step that concerns no other succeeds without an answer. Any
// thread may call.
class MorphAnswers {
 public:
  // A step was given to these devices to prepare. Without any, the step is ready.
  void expect(MorphId id, std::vector<int> devices);
  // The step is committed on the devices that are returned. Without any, the step is done.
  std::vector<int> commit(MorphId id);
  // Forgets a step that is given up or has failed, and returns its devices.
  std::vector<int> drop(MorphId id);

  // A device's answer to prepare(). Returns the whole step's answer with the last one, or with the
  // first failure; later answers to a failed step are ignored.
  std::optional<MorphReady> ready(MorphReady answer, int device);
  // A device's answer to commit(). Returns true with the last one.
  bool done(MorphId id, int device);

  // Devices that have failed, whose answers are not waited for. Returns the steps that are ready or
  // done without them.
  struct Answered {
    std::vector<MorphReady> ready;
    std::vector<MorphId> done;
  };
  Answered give_up(const std::vector<int>& devices);

 private:
  struct Waiting {
    std::vector<int> devices;
    std::vector<int> not_ready;  // devices that have not answered
    std::vector<int> not_done;
    std::string remark;
    bool failed = false;
    bool committed = false;
  };
  std::mutex mutex_;
  std::unordered_map<MorphId, Waiting> steps_;
};

}  // namespace protean
