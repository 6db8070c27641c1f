// Tests fetches of weights from a device that drops them meanwhile.

#include "worker/layer_swapper.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cost/pages.h"
#include "worker/morph_scene_for_test.h"
#include "worker/rank.h"

namespace protean {
namespace {

constexpr std::int64_t kPageBytes = 4096;
constexpr SwapComponent kFetched{1, Component::kMlp, Precision::kBf16};

// A device that has the weights.
struct Peer {
  Peer()
      : spec(MorphScene::spec()),
        form(MorphScene::form_of(8, 1)),
        pool(*cpu::PagePool::create(kPageBytes, form_pages(spec, form, kPageBytes) + 100)) {
    const Holding& holding = form.group.front();
    kv = *KvStore::create({spec, holding, form.shards, form.kv}, *pool);
    WorkerOptions options{.form = form, .devices = {{}}, .max_step_tokens = 8, .max_positions = 64};
    options.pages = PageBudget{kPageBytes, pool->pages()};
    rank = *Rank::create(options, checkpoint, {}, {pool.get(), kv});
  }
  Result<FilledPages> fill(Precision precision) {
    const auto read = [this](const ComponentVariant& which, std::span<std::byte> memory,
                             const Pace& pace) {
      return MorphScene::read_from(checkpoint, which, memory, pace);
    };
    SwapComponent what = kFetched;
    what.to = precision;
    return fill_pages(*pool, {spec, what, {0}, 1}, read);
  }
  // Gives the component other weights, and returns the pages of the old ones to the pool.
  void drop() {
    Result<FilledPages> next = fill(Precision::kW8);
    ASSERT_TRUE(next.ok());
    SwapComponent lowered = kFetched;
    lowered.to = Precision::kW8;
    rank->swap_component(lowered, next->shards);
    next->shards.clear();
  }

  const ModelSpec spec;
  const Form form;
  SyntheticCheckpoint checkpoint{spec};
  const std::unique_ptr<cpu::PagePool> pool;
  std::shared_ptr<KvStore> kv;
  std::unique_ptr<Rank> rank;
};

// The fetch of one shard, during which `meanwhile` happens: once it knows where the shard is.
struct Fetch {
  Fetch(Peer& peer, std::function<void()> meanwhile)
      : pool(*cpu::PagePool::create(kPageBytes, 200)),
        swapper(
            {.pool = pool.get(),
             .thread = &thread,
             .spec = peer.spec,
             .shards = 1,
             .read = {},
             .kv = nullptr,
             .handlers = {.ready = [this](MorphReady what) { ready.set_value(std::move(what)); },
                          .done = {}}}) {
    swapper.prepare(MorphId{1},
                    {.step = kFetched,
                     .component = kFetched,
                     .shards = {0},
                     .peer =
                         [&peer, meanwhile = std::move(meanwhile)](int shard) {
                           auto found = peer.rank->find_shard(
                               {kFetched.layer, kFetched.component, kFetched.to, shard, 1});
                           meanwhile();
                           return found;
                         },
                     .peer_is_sound = [](int) { return true; },
                     .kv = {}});
  }
  ~Fetch() { thread.stop(); }
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  const std::unique_ptr<cpu::PagePool> pool;
  std::promise<MorphReady> ready;
  PacedThread thread{1.0};
  LayerSwapper swapper;
};

TEST(LayerSwapper, AFetchGetsWhatThePeerDropsMeanwhile) {
  Peer peer;
  const std::int64_t free_pages = peer.pool->free_pages();
  Result<FilledPages> right = peer.fill(Precision::kBf16);
  ASSERT_TRUE(right.ok());
  const std::int64_t pages = right->shards.front()->pages();
  ASSERT_GT(pages, 1);
  std::int64_t kept = 0;
  Fetch fetch(peer, [&] {
    peer.drop();
    kept = peer.pool->free_pages();
  });
  ASSERT_FALSE(fetch.ready.get_future().get().failure);
  std::optional<LayerSwapper::Filled> filled = fetch.swapper.take(MorphId{1});
  ASSERT_TRUE(filled);
  const std::byte* const got = filled->memory.front()->data();
  const std::byte* const wanted = right->shards.front()->data();
  EXPECT_TRUE(std::equal(got, got + pages * kPageBytes, wanted));
  fetch.thread.stop();
  right->shards.clear();
  EXPECT_EQ(peer.pool->free_pages(), kept + 2 * pages) << "the copy's and those to compare with";
  EXPECT_GT(peer.pool->free_pages(), free_pages);
}

TEST(LayerSwapper, AFetchThatIsCalledOffReadsNothingMore) {
  for (const bool gives_up : {false, true}) {
    Peer peer;
    LayerSwapper* called_off = nullptr;
    std::promise<void> known;
    std::promise<void> dropped;
    Fetch fetch(peer, [&] {
      known.get_future().wait();
      gives_up ? called_off->give_up() : called_off->abort(MorphId{1});
      peer.drop();
      dropped.set_value();
    });
    called_off = &fetch.swapper;
    EXPECT_TRUE(fetch.swapper.prepares());
    known.set_value();
    dropped.get_future().wait();
    fetch.thread.stop();
    EXPECT_EQ(fetch.pool->free_pages(), fetch.pool->pages());
    EXPECT_EQ(fetch.ready.get_future().wait_for(std::chrono::seconds(0)),
              std::future_status::timeout);
  }
}

}  // namespace
}  // namespace protean
