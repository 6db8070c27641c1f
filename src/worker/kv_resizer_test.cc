#include "worker/kv_resizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "cost/memory.h"

namespace protean {
namespace {

constexpr std::int64_t kPoolPageBytes = 4096;
constexpr std::int64_t kBlocks = 8;

ModelSpec tiny_spec() {
  ModelSpec spec;
  spec.layers = 2;
  spec.attention = {.heads = 2, .kv_heads = 2, .head_dim = 16};
  return spec;
}

// Waits until all tasks posted so far have run, on both queues.
void drain(PacedThread& thread) {
  std::promise<void> done;
  thread.post([&] { done.set_value(); });
  done.get_future().wait();
}

// A resize that finds no pages tries again after the task that holds them. It then rests between
// its pieces, and may be aborted there.
TEST(KvResizer, CanBeAbortedDuringItsSecondTry) {
  const KvForm form{.block_tokens = 16, .blocks = kBlocks};
  const ModelSpec spec = tiny_spec();
  const Holding holding = whole_model(spec.layers, 1, DeviceId{0});
  auto pool = cpu::PagePool::create(kPoolPageBytes, 64);
  ASSERT_TRUE(pool.ok());
  auto kv = KvStore::create({spec, holding, 1, form}, **pool);
  ASSERT_TRUE(kv.ok());
  const std::int64_t free_pages = (*pool)->free_pages();
  auto hog = cpu::PageRange::reserve(**pool, free_pages);
  ASSERT_TRUE(hog.ok() && hog->attach(free_pages).ok());

  PacedThread thread(1e-9);  // after a piece of work, rests until the steps end
  bool answered = false;
  KvResizer resizer({.pool = pool->get(),
                     .thread = &thread,
                     .kv = kv->get(),
                     .handlers = {.ready = [&](const MorphReady&) { answered = true; },
                                  .done = [](const MorphDone&) {}}});
  bool holds = true;
  std::atomic<bool> released = false;
  thread.post([&] {
    while (holds) {
      (void)thread.may_go_on();
    }
    *hog = cpu::PageRange();
    thread.step_begins();
    released = true;
  });
  resizer.prepare(MorphId{1}, {.blocks = 2 * kBlocks});
  thread.post_urgent([&] { holds = false; });  // runs after the first try
  while (!released || (*pool)->free_pages() == free_pages) {
    std::this_thread::yield();
  }
  resizer.abort(MorphId{1});
  // If an urgent task could run within the resize, it would have by now.
  std::promise<void> came_between;
  thread.post_urgent([&] { came_between.set_value(); });
  EXPECT_EQ(came_between.get_future().wait_for(std::chrono::milliseconds(50)),
            std::future_status::timeout);
  thread.step_ends();
  drain(thread);
  drain(thread);
  thread.stop();
  EXPECT_FALSE(answered);
  EXPECT_EQ((*kv)->blocks(), kBlocks);
  EXPECT_EQ((*pool)->free_pages(), free_pages);
}

}  // namespace
}  // namespace protean
