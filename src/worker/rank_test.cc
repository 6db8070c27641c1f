// Devices of a group, each on a thread of its own.

#include "worker/rank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <semaphore>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "cost/pages.h"
#include "model/synthetic_checkpoint.h"
#include "worker/fabric.h"

namespace protean {
namespace {

ModelSpec stage_spec() {
  ModelSpec spec;
  spec.architecture = "test";
  spec.layers = 2;
  spec.hidden = 64;
  spec.ffn = 96;
  spec.vocab = 70;
  spec.max_context = 64;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
  return spec;
}

StepPlan one_prompt() {
  StepPlan plan{.id = StepId{1}, .tokens = {3, 1, 4}, .blocks = {0}};
  plan.slices.push_back({.token_count = 3, .block_count = 1, .sample = 0});
  plan.samples.push_back({.params = {.temperature = 0}, .position = 3});
  return plan;
}

// A rest of the background work would take an hour. It ends because the second stage waits for the
// rows of the first one, which has not begun.
TEST(Rank, BackgroundWorkDoesNotRestWhileAStageWaitsForRows) {
  const ModelSpec spec = stage_spec();
  const SyntheticCheckpoint checkpoint(spec);
  const Form form = divide(
      single_device_form(spec, Precision::kBf16, DeviceId{0}, {.block_tokens = 4, .blocks = 8}),
      even_division(spec.layers, 1, 2), std::vector{DeviceId{0}, DeviceId{1}});
  const WorkerOptions options{
      .form = form, .devices = {{}, {}}, .max_step_tokens = 16, .max_positions = 64};
  const std::unique_ptr<Fabric> fabric = *Fabric::create(
      {.devices = 2, .rows = 16, .hidden = spec.hidden, .steps_in_flight = 2, .spins = true});
  std::vector<std::unique_ptr<Rank>> stages;
  for (int device = 0; device < 2; ++device) {
    stages.push_back(*Rank::create(options, checkpoint, {}, {}, {device, fabric.get(), device}));
  }
  PacedThread background(1e-6);
  stages[1]->set_background(background);
  const std::vector<StepPlan> plans = {one_prompt()};
  std::vector<HomeResult> results;
  std::thread last([&] {
    background.step_begins();
    results = stages[1]->run(1, plans);
    background.step_ends();
  });
  std::promise<void> done;
  background.post([&] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(4);
    while (std::chrono::steady_clock::now() < until) {
    }
    (void)background.may_go_on();
    done.set_value();
  });
  EXPECT_EQ(done.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  EXPECT_TRUE(stages[0]->run(1, plans).empty());
  last.join();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results.front().result.sampled.size(), 1U);
}

Form form_of_one(const ModelSpec& spec) {
  Form form =
      single_device_form(spec, Precision::kBf16, DeviceId{0}, {.block_tokens = 4, .blocks = 8});
  form.shards = 2;
  form.group = {whole_model(spec.layers, form.shards, DeviceId{0})};
  return form;
}

// Two homes of one device each, of which each is to hold one shard of the first layer's attention.
GroupChange one_copy_of_attention(const ModelSpec& spec) {
  Formation apart{.form = form_of_one(spec), .devices = {0, 1}, .homes = {{0}, {1}}};
  apart.form.group.push_back(whole_model(spec.layers, apart.form.shards, DeviceId{1}));
  apart.form.kv.blocks *= 2;
  GroupChange change{.number = 1, .meeting = {0, 1}, .after = apart};
  change.hold = GroupChange::Hold{};
  GroupChange::Hold& hold = *change.hold;
  hold.step = {0, Component::kAttention, {{0, 1}, {1, 1}}};
  hold.live = {{0, 1}, {0, 1}};
  change.after.form = after(std::move(change.after.form), hold.step);
  change.routes = {route_of(change.after, 0), route_of(change.after, 1)};
  hold.before = std::move(apart);
  return change;
}

// Adds the share of each device to the change. `has_failed` is asked by the second one's.
void add_shares(GroupChange& change, const std::vector<KvStore*>& stores,
                const std::function<bool()>& has_failed) {
  GroupChange::Hold& hold = *change.hold;
  for (int device = 0; device < 2; ++device) {
    hold.shares.push_back(std::make_unique<KvShare>(
        [&change, device] { return kv_move(change.hold->before, change.after, 0, device); },
        KvMoveScene{.arrays = {stores[0]->array(0), stores[1]->array(0)},
                    .live = hold.live,
                    .slot_bytes = stores[0]->layers()[0].block_stride_bytes,
                    .device = device,
                    .has_failed = device == 1 ? has_failed : [] { return false; }}));
  }
}

// The first device of a group of two, whose second one fails.
struct Survivor {
  static constexpr std::int64_t kPage = 4096;

  Survivor() {
    for (int device = 0; device < 2; ++device) {
      kv.push_back(*KvStore::create({spec, form.group[0], form.shards, form.kv}, *pool));
    }
    rank = *Rank::create({.form = form,
                          .joining = Joining{fabric, 0},
                          .max_step_tokens = 16,
                          .max_positions = 64,
                          .pages = PageBudget{kPage, pool->pages()}},
                         SyntheticCheckpoint(spec), {}, {pool.get(), kv[0]}, {0, fabric.get(), 0});
    rank->set_background(background);
  }

  const ModelSpec spec = stage_spec();
  const Form form = form_of_one(spec);
  const std::shared_ptr<Fabric> fabric =
      *Fabric::create({.devices = 2, .rows = 16, .hidden = spec.hidden, .steps_in_flight = 2});
  const std::unique_ptr<cpu::PagePool> pool =
      *cpu::PagePool::create(kPage, 4 * form_pages(spec, form, kPage));
  std::vector<std::shared_ptr<KvStore>> kv;  // of both
  ShardMemory memory;
  PacedThread background{1};
  std::unique_ptr<Rank> rank;
};

// A thread of the other device hangs in a piece of the exchange when its device fails.
TEST(Rank, ADeviceThatFailedWithinAnExchangeOfKvWritesToNoOther) {
  Survivor survivor;
  KvStore& kv = *survivor.kv[0];
  const std::int64_t kv_bytes = survivor.form.kv.blocks * kv.layers()[0].block_stride_bytes;
  std::binary_semaphore entered(0);
  std::binary_semaphore goes_on(0);
  GroupChange change = one_copy_of_attention(survivor.spec);
  add_shares(change, {&kv, survivor.kv[1].get()}, [&] {
    entered.release();
    goes_on.acquire();
    return false;
  });
  std::thread hanging([&] { (void)change.hold->shares[1]->run_one(); });
  entered.acquire();
  survivor.fabric->progress().fail(1);
  survivor.rank->change(change, 0, survivor.memory);
  EXPECT_EQ(kv.layers()[0].base, kv.array(0));
  const std::span array(kv.array(0), static_cast<std::size_t>(kv_bytes));
  std::ranges::fill(array, std::byte{7});  // what the device computes from now on
  std::ranges::fill(std::span(survivor.kv[1]->array(0), array.size()), std::byte{5});
  goes_on.release();
  hanging.join();
  EXPECT_EQ(std::ranges::count(array, std::byte{7}), kv_bytes);
  EXPECT_FALSE(change.hold->shares[1]->in_chunk());
}

// The other device may hang while it hands rows over.
TEST(Rank, ADeviceTakesAnotherMailboxWhenAGroupPartsThatHasFailed) {
  for (const bool fails : {false, true}) {
    Survivor survivor;
    const auto mailbox = [&] { return survivor.fabric->mailboxes().rows_of(0, 1, 0, 1).data(); };
    const float* const before = mailbox();
    cpu::GroupProgress& progress = survivor.fabric->progress();
    progress.reach(1, {1, cpu::kStepEnd});
    if (fails) {
      progress.fail(1);
    }
    GroupChange part{.number = 1,
                     .meeting = {0, 1},
                     .after = {.form = survivor.form, .devices = {0}, .homes = {{0}}}};
    part.routes = {route_of(part.after, 0)};
    survivor.rank->change(part, 0, survivor.memory);
    EXPECT_EQ(mailbox() != before, fails);
  }
}

}  // namespace
}  // namespace protean
