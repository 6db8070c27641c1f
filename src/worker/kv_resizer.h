#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "contract/morph.h"
#include "device/cpu/pages.h"
#include "worker/kv_store.h"
#include "worker/layer_swapper.h"
#include "worker/paced_thread.h"

namespace protean {

// Makes the KV cache larger beside running steps, and takes back the pages of a smaller one
// (MorphServe section 4.4). New blocks are there once the resize is ready; the leaving ones are
// gone with its commit. Resizes are prepared in order, each when the one before it is committed or
// aborted. Borrows what it is given; the thread must be stopped before this is destroyed.
class KvResizer {
 public:
  struct Parts {
    cpu::PagePool* pool = nullptr;
    PacedThread* thread = nullptr;
    KvStore* kv = nullptr;
    MorphHandlers handlers;
  };
  explicit KvResizer(Parts parts) : parts_(std::move(parts)) {}

  // On any thread. Executor's prepare() and abort(): an aborted resize's blocks are in no plan.
  void prepare(MorphId id, const ResizeKv& resize);
  void abort(MorphId id);

  // On the thread that runs steps. False if the step is none of the resizes here.
  bool commit(MorphId id);

 private:
  struct Resize {
    MorphId id;
    std::int64_t blocks = 0;
    std::int64_t blocks_before = 0;
    std::atomic<bool> aborted{false};
    std::atomic<bool> ready{false};
    bool put_off = false;
  };

  std::shared_ptr<Resize> forget(MorphId id);
  void begin_next();
  Status grow(const Resize& resize);
  bool put_off(const Error& why);
  void end(const Resize& resize);

  const Parts parts_;
  std::mutex mutex_;
  std::unordered_map<MorphId, std::shared_ptr<Resize>> resizes_;  // neither committed nor aborted
  // Touched by the paced thread only.
  std::deque<std::shared_ptr<Resize>> waiting_;
  std::shared_ptr<Resize> open_;  // begun, not ended
};

}  // namespace protean
