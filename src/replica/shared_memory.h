#pragma once

#include <cstddef>
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
// they have together, but for what is lost: a model gets more only after another one has given it
// back. Any thread may call; ModelMemory does.
class SharedMemory {
 public:
  using Tell = std::function<void(WantQuota)>;

  SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Returns the memory of all devices that belongs to models which are loaded, and what is on its
  // way from one model to another, less what models lend that are not loaded. The system has what
  // no page of them has taken yet, but no further model may take it.
  std::int64_t claimed_bytes();

 private:
  friend class ModelMemory;
  using Cpus = std::vector<std::vector<int>>;  // of each device
  struct Devices {
    std::size_t count = 0;  // of the devices
    std::vector<ModelMemory*> models;
    std::int64_t unused = 0;  // bytes that no model has
    std::int64_t owed = 0;    // bytes of models that have left, which others are to give back
    std::int64_t lost = 0;    // bytes that threads which never end may still use
  };
  using Wishes = std::vector<std::pair<Tell, WantQuota>>;

  // The following three are called with the mutex held. The caller of share() releases it and then
  // tells the wishes.
  static Wishes share(Devices& devices, TimeNs now_ns);
  // Returns what the models on the devices own together, in bytes of each device.
  static std::int64_t own_bytes(const Devices& devices);
  // Returns the most bytes of each device that a model may have by borrowing.
  static std::int64_t most_bytes(const Devices& devices, const MemoryAccount& account);

  std::mutex mutex_;
  std::map<Cpus, Devices> devices_;
};

// The memory of one model: of one configuration, however often it is unloaded and loaded again.
// Unloaded, it returns what it has borrowed and keeps the rest of its quota.
class ModelMemory : public std::enable_shared_from_this<ModelMemory> {
 public:
  // The pages of a model on each of its devices.
  struct Pages {
    std::int64_t bytes = 1;          // of a page
    std::int64_t own = 0;            // that it was given when it was opened
    std::int64_t least = 0;          // with which it can be loaded
    std::int64_t lacking_bytes = 0;  // that its devices lack, all together (Holding)
    std::int64_t free_bytes = 0;     // of each device, for this model and for later ones
  };
  // `cpus` are the CPUs of each device.
  ModelMemory(std::shared_ptr<SharedMemory> all, std::vector<std::vector<int>> cpus,
              const Pages& pages);
  ~ModelMemory();
  ModelMemory(const ModelMemory&) = delete;
  ModelMemory& operator=(const ModelMemory&) = delete;

  // The model is loaded while this exists.
  class Lease {
   public:
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    const std::int64_t pages;           // the quota with which the model is loaded
    const std::int64_t own_pages;       // that it always gets back
    const std::int64_t most_pages;      // that it may have while it is loaded
    const std::uint64_t wishes_before;  // WantQuotas up to this number were told before

    // The devices of the model have failed: from now on it neither gives memory nor asks for any.
    // Models that lent it some are told.
    void fail() const { memory_->fail(); }
    // Threads of the model may use its memory for ever: what it has borrowed does not come back.
    void lose() const;
    // Takes what the model's engine says of its memory.
    void report(const MemoryUse& use, TimeNs now_ns) const { memory_->report(use, now_ns); }

   private:
    friend class ModelMemory;
    Lease(std::shared_ptr<ModelMemory> memory, std::int64_t most)
        : pages(memory->account_.quota / memory->account_.page_bytes),
          own_pages(memory->account_.own / memory->account_.page_bytes),
          most_pages(most),
          wishes_before(memory->wishes_),
          memory_(std::move(memory)) {}
    const std::shared_ptr<ModelMemory> memory_;
  };
  // `tell` takes each WantQuota to the model's engine, in any order and on any thread, and does not
  // block. A model without others on its devices gets no WantQuota.
  std::unique_ptr<Lease> load(SharedMemory::Tell tell);
  // The model is not loaded and never will be again. The destructor does the same.
  void leave();

 private:
  friend class SharedMemory;
  void fail();
  void unload();
  void report(const MemoryUse& use, TimeNs now_ns);

  const std::shared_ptr<SharedMemory> all_;
  SharedMemory::Devices& devices_;
  const Pages pages_;
  // Guarded by the mutex of `all_`.
  MemoryAccount account_;
  std::int64_t all_bytes_ = 0;  // that models on its devices can own together, when it was opened
  bool left_ = false;
  bool loaded_ = false;
  bool failed_ = false;       // its devices, while it is loaded
  bool loses_ = false;        // what it has borrowed is lost when it is unloaded
  SharedMemory::Tell tell_;   // empty while it is not loaded
  bool told_ = false;         // a wish, since it was loaded
  bool told_lost_ = false;    // the latest wish's own_is_lost
  std::int64_t wished_ = 0;   // bytes, of the latest wish
  TimeNs wished_ns_ = 0;      // when that was told
  std::uint64_t wishes_ = 0;  // number of the latest wish, which goes on when it is loaded again
};

}  // namespace protean
