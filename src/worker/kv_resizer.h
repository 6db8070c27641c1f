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

// Grows the KV cache in the background while steps run, and returns the pages of a smaller one
// (MorphServe section 4.4). New blocks exist once the resize is ready; removed ones are gone with
// its commit. Resizes are prepared in order, each after the one before it is committed or aborted.
// Does not own what it is given; the thread must be stopped before this is destroyed.
class KvResizer {
 public:
  struct Setup {
    cpu::PagePool* pool = nullptr;
    PacedThread* thread = nullptr;
    KvStore* kv = nullptr;
    MorphHandlers handlers;
  };
  explicit KvResizer(Setup setup) : setup_(std::move(setup)) {}

  // Executor's prepare() and abort(), on any thread. No plan may use blocks of an aborted resize.
  void prepare(MorphId id, const ResizeKv& resize);
  void abort(MorphId id);
  // Returns true while a resize is not ready.
  bool prepares();

  // Commits a resize, on the thread that runs steps. Returns false if there is none with this id.
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

  const Setup setup_;
  std::mutex mutex_;
  std::unordered_map<MorphId, std::shared_ptr<Resize>> resizes_;  // neither committed nor aborted
  // Used by the paced thread only.
  std::deque<std::shared_ptr<Resize>> waiting_;
  std::shared_ptr<Resize> open_;  // begun, and neither committed nor aborted
};

}  // namespace protean
