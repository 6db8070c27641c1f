#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/units.h"
#include "contract/memory_use.h"
#include "control/memory_sharing.h"
#include "ports/event.h"

namespace protean {

class ModelMemory;

// The memory that models of a server trade which are served on the same devices (share_memory). At
// any time, the quotas of the models on a set of devices and what none of them has make up what
// they have together: a model gets more only after another one has given it back. Any thread may
// call; ModelMemory does.
class SharedMemory {
 public:
  using Tell = std::function<void(WantQuota)>;

  SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

 private:
  friend class ModelMemory;
  using Cpus = std::vector<std::vector<int>>;  // of each device
  struct Devices {
    std::vector<ModelMemory*> models;
    std::int64_t unused = 0;  // bytes that no model has
    std::int64_t owed = 0;    // bytes of models that have left, which others are to give back
  };
  using Wishes = std::vector<std::pair<Tell, WantQuota>>;

  // Called with the mutex held. What is returned is told without it.
  static Wishes share(Devices& devices, TimeNs now_ns);

  std::mutex mutex_;
  std::map<Cpus, Devices> devices_;
};

// The memory of one model: of one configuration, however often it is unloaded and loaded again.
// Unloaded, it keeps its quota, but for what it had in addition to its own.
class ModelMemory : public std::enable_shared_from_this<ModelMemory> {
 public:
  // `cpus` are those of each device that the model is served on, `own_pages` the pages that each of
  // the devices has for it.
  ModelMemory(std::shared_ptr<SharedMemory> all, std::vector<std::vector<int>> cpus,
              std::int64_t page_bytes, std::int64_t own_pages);
  ~ModelMemory();
  ModelMemory(const ModelMemory&) = delete;
  ModelMemory& operator=(const ModelMemory&) = delete;

  // The model is loaded while this exists.
  class Lease {
   public:
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    const std::int64_t pages;       // the quota with which the model is loaded
    const std::int64_t own_pages;   // that it always gets back
    const std::int64_t most_pages;  // that it may have while it is loaded

    // Takes what the model's engine says of its memory.
    void report(const MemoryUse& use, TimeNs now_ns) const { memory_->report(use, now_ns); }

   private:
    friend class ModelMemory;
    Lease(std::shared_ptr<ModelMemory> memory, std::int64_t most)
        : pages(memory->account_.quota / memory->account_.page_bytes),
          own_pages(memory->account_.own / memory->account_.page_bytes),
          most_pages(most),
          memory_(std::move(memory)) {}
    const std::shared_ptr<ModelMemory> memory_;
  };
  // `tell` takes each WantQuota to the model's engine, in any order and on any thread, and does not
  // block.
  std::unique_ptr<Lease> load(SharedMemory::Tell tell);

 private:
  friend class SharedMemory;
  void unload();
  void report(const MemoryUse& use, TimeNs now_ns);

  const std::shared_ptr<SharedMemory> all_;
  SharedMemory::Devices& devices_;
  // Guarded by the mutex of `all_`.
  MemoryAccount account_;
  SharedMemory::Tell tell_;   // empty while it is not loaded
  std::int64_t wished_ = 0;   // bytes, of the latest wish
  TimeNs wished_ns_ = 0;      // when that was told
  std::uint64_t wishes_ = 0;  // number of the latest wish
};

}  // namespace protean
