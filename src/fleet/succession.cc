#include "fleet/succession.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "base/check.h"

namespace protean {
namespace {

// Blocks of one copy while steps go on. Nothing else waits for it.
constexpr std::int64_t kBlocksOfChunk = 64;
// If no more full blocks than these are to be copied, steps pause for the rest.
constexpr std::int64_t kBlocksOfPause = 16;
// Prompts may fill blocks as fast as they are copied, so steps pause after so many looks at all.
constexpr int kMostRounds = 4;
// A copy withholds at most this part of the free blocks from sequences.
constexpr std::int64_t kFreePart = 4;
constexpr int kLooksAtCopy = 4;  // within its timeout

// Ids of its copies, so that they differ from those of migrations.
constexpr std::uint64_t kFirstCopy = std::uint64_t{1} << 63;

}  // namespace

Status Succession::begin(const Member& by, ReplicaId as, TimeNs now_ns) {
  check(!running(), "one succession at a time");
  if (by.engine.scheduler.block_tokens != former().block_tokens()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "KV blocks of {} tokens do not become blocks of {}: load a second copy",
                      former().block_tokens(), by.engine.scheduler.block_tokens);
  }
  by_ = by;
  as_ = as;
  if (Status may = check_requests(); !may.ok()) {
    by_ = {};
    return may;
  }
  stage_ = Stage::kSettling;
  rounds_ = 0;
  failed_.reset();
  former().hold_form(true);
  former().call_off_morph("its requests go on in another form", now_ns);
  advance(now_ns);
  return {};
}

// Returns an error if a request here could never run in the engine that succeeds.
Status Succession::check_requests() const {
  const SchedulerConfig& limits = by_.engine.scheduler;
  const std::int64_t most_blocks = std::max(limits.kv_blocks, limits.largest_kv_blocks);
  if (former().longest() > limits.max_model_len || former().largest_need() > most_blocks) {
    return make_error(
        ErrorCode::kUnavailable,
        "a request needs {} tokens and {} KV blocks, but there is a context of {} and "
        "there are {} blocks where it would go on: ask again when it has ended",
        former().longest(), former().largest_need(), limits.max_model_len, most_blocks);
  }
  return {};
}

void Succession::on(const Event& event) {
  if (!running() || event.replica != as_) {
    return;
  }
  if (const auto* copy = std::get_if<BlocksCopied>(&event.what)) {
    if (copies() && copy->id == copy_.id) {
      copied(event.at_ns);
    }
  } else if (const auto* failed = std::get_if<DevicesFailed>(&event.what)) {
    fail_devices(failed->why, event.at_ns);
  }
}

void Succession::advance(TimeNs now_ns) {
  if (!running() || copies()) {
    return;
  }
  if (stage_ == Stage::kSettling) {
    // If no step is in flight, no sequence has KV, and what is cached may be forgotten.
    const bool in_place = former().kv_in_place() || former().quiet();
    if (!former().form_at_rest() || !in_place) {
      return;
    }
    blocks_ = CopiedBlocks(former().observe().kv_blocks, by_.engine.scheduler.kv_blocks);
    stage_ = Stage::kCopying;
  }
  if (stage_ == Stage::kCopying && !copy_next(now_ns)) {
    if (const Status may = check_requests(); !may.ok()) {
      fail(may.error(), now_ns);
      return;
    }
    former().hold_steps();
    stage_ = Stage::kPausing;
  }
  if (stage_ == Stage::kPausing && former().quiet()) {
    copy_rest(now_ns);
  }
}

bool Succession::keeps_cached() const {
  const Form now = former().form().value_or(loaded_);
  const Form next = by_.engine.morph ? by_.engine.morph->start : by_.form;
  return equally_precise(now, next) && now.kv.precision == next.kv.precision;
}

std::vector<HeldBlock> Succession::held() const {
  std::vector<HeldBlock> held = former().held_blocks();
  if (!keeps_cached()) {
    std::erase_if(held, [](const HeldBlock& block) { return block.idle; });
  }
  return held;
}

// Begins the next copy of full blocks. Returns false if few are left, or blocks are filled as fast
// as they are copied.
bool Succession::copy_next(TimeNs now_ns) {
  for (;;) {
    const Observation now = former().observe();
    const std::int64_t most_idle = (now.kv_blocks - now.kv_blocks_used) / kFreePart;
    std::vector<BlockMove> moves;
    while (!round_.empty() && std::ssize(moves) < kBlocksOfChunk) {
      const HeldBlock next = round_.front();
      const bool withholds = next.idle && std::ssize(moves) >= most_idle;
      if (withholds && !moves.empty()) {
        break;
      }
      round_.pop_front();
      if (!withholds && former().holds(next)) {
        copy_.lent.push_back(next.block);
        moves.push_back({.from = next.block, .to = blocks_.place_for(next)});
      }
    }
    if (!moves.empty()) {
      former().lend(copy_.lent);
      copy(std::move(moves), now_ns);
      return true;
    }
    if (rounds_++ == kMostRounds) {
      return false;
    }
    for (const HeldBlock& block : blocks_.lacking(held())) {
      if (block.tokens == former().block_tokens()) {
        round_.push_back(block);
      }
    }
    if (std::ssize(round_) <= kBlocksOfPause) {
      round_.clear();
      return false;
    }
  }
}

// Copies all that has no valid copy, as far as there is room. No block changes any more: no step
// runs, and those that requests give up are not allocated.
void Succession::copy_rest(TimeNs now_ns) {
  std::vector<BlockMove> moves;
  for (const HeldBlock& block : blocks_.lacking(held())) {
    const BlockId to = blocks_.place_for(block);
    if (block.tokens > 0) {
      moves.push_back({.from = block.block, .to = to});
    }
  }
  stage_ = Stage::kLastCopy;
  if (moves.empty()) {
    hand_over(now_ns);
  } else {
    copy(std::move(moves), now_ns);
  }
}

void Succession::copy(std::vector<BlockMove> moves, TimeNs now_ns) {
  copy_.id = CopyId{kFirstCopy + ++copies_total_};
  copy_.since_ns = now_ns;
  exchange_->copy(copy_.id, ReplicaId{0}, as_, std::move(moves));
}

void Succession::copied(TimeNs now_ns) {
  copy_.since_ns = -1;
  former().give_back(std::exchange(copy_.lent, {}), now_ns);
  if (stage_ == Stage::kLastCopy) {
    hand_over(now_ns);
  }
}

void Succession::hand_over(TimeNs now_ns) {
  if (const Status may = check_requests(); !may.ok()) {
    fail(may.error(), now_ns);
    return;
  }
  const bool keeps = keeps_cached();
  EngineState state = former().release_all(now_ns);
  move_state(state.scheduler, blocks_.places(), keeps);
  install(std::move(state), now_ns);
}

bool Succession::replace_failed(const ReplicaFailure& failure, TimeNs now_ns) {
  if (!running()) {
    return false;
  }
  copy_ = {};  // the engine has taken its blocks back
  failed_ = failure;
  install(former().counters(), now_ns);
  return true;
}

void Succession::replace(const Member& by, ReplicaFailure failure, TimeNs now_ns) {
  check(!running(), "one succession at a time");
  by_ = by;
  failed_ = std::move(failure);
  install(former().counters(), now_ns);
}

// Makes the engine that succeeds, which takes the state.
void Succession::install(EngineState state, TimeNs now_ns) {
  EngineConfig& config = by_.engine;
  config.replica = ReplicaId{0};
  if (config.morph && state.form) {  // an operator's wishes were about the former form
    state.form->policy = {};
    state.form->policy.mode = config.morph->mode;
    state.form->policy.floor = config.morph->bounds.floor;
    state.form->pin.reset();
    state.form->packing.reset();
  }
  station().engine.reset();
  station().executor.reset();
  exchange_->succeeded();
  station().executor = std::make_unique<HomeExecutor>(*by_.executor);
  station().engine = std::make_unique<Engine>(config, *station().executor, sink_);
  station().failure.clear();
  loaded_ = by_.form;
  timeout_ns_ = by_.device_timeout_ns;
  end(Status());
  station().engine->absorb(std::move(state), now_ns);
}

void Succession::end(Status how) {
  stage_ = Stage::kNone;
  round_.clear();
  blocks_ = {};
  by_ = {};
  ended_ = std::move(how);
}

void Succession::fail_devices(const std::string& why, TimeNs now_ns) {
  failed_ = ReplicaFailure{as_, now_ns, why, by_.executor->failing_devices()};
  by_.executor->give_up();
  fail(make_error(ErrorCode::kUnavailable, "what was to take over {}", why), now_ns);
}

// Lets the former engine go on as if nothing had been.
void Succession::fail(const Error& why, TimeNs now_ns) {
  const std::vector<BlockId> lent = std::exchange(copy_, {}).lent;
  end(why);
  former().give_back(lent, now_ns);
  former().hold_form(false);
  former().go_on(now_ns);
  former().resume_form(now_ns);
}

void Succession::watch(TimeNs idle_ns, TimeNs now_ns) {
  const TimeNs timeout_ns = by_.device_timeout_ns;
  if (!copies() || timeout_ns == 0) {
    return;
  }
  if (idle_ns > timeout_ns / 2 || by_.executor->awaits_turn()) {
    copy_.since_ns = now_ns;
  }
  if (now_ns - copy_.since_ns >= timeout_ns) {
    fail_devices(fmt::format("has not answered for {} s", timeout_ns / kNsPerS), now_ns);
  }
}

std::optional<TimeNs> Succession::look_within_ns() const {
  return copies() && by_.device_timeout_ns != 0
             ? std::optional(by_.device_timeout_ns / kLooksAtCopy)
             : std::nullopt;
}

}  // namespace protean
