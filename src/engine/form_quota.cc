// Memory that models trade which share devices. A model lends its own memory and borrows that of
// others.

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "cost/pages.h"
#include "engine/form_steering.h"

namespace protean {
namespace {

// Needs are rounded up to this part of the model's own pages, so that small changes trigger no
// trade.
constexpr std::int64_t kParts = 32;

// While a trade may bring memory, which takes about this time, no precision is lowered for lack of
// it.
constexpr TimeNs kTradeNs = kNsPerS / 2;

}  // namespace

std::int64_t FormSteering::own_pages() const {
  return config_.own_pages > 0 ? config_.own_pages : config_.bounds.budget.pages;
}

void FormSteering::on(const WantQuota& want) {
  if (want.number <= memory_.told.latest.wish) {
    return;
  }
  memory_.told.latest.wish = want.number;
  memory_.told.stale = true;
  memory_.wanted.pages = want.pages;
  memory_.wanted.own_is_lost = want.own_is_lost;
  const std::int64_t has = config_.bounds.budget.pages;
  if (memory_.wanted.pages < has) {
    return;
  }
  if (std::exchange(memory_.kv.shrinks, false)) {
    run_.call_off("no other model needs the memory any more", now_ns_);
  }
  if (memory_.wanted.pages > has) {
    take_quota(memory_.wanted.pages);
  } else {
    take_free_pages();
  }
}

// Takes a quota of so many pages, or a piece less than there was. A device that still holds pages
// of a morph which was called off refuses a smaller quota for a moment.
void FormSteering::take_quota(std::int64_t pages) {
  PageBudget& budget = config_.bounds.budget;
  const std::int64_t piece =
      std::max<std::int64_t>(1, config_.quota_piece_bytes / budget.page_bytes);
  const std::int64_t next = std::max(pages, budget.pages - piece);
  const bool grows = next > budget.pages;
  if (!run_.set_quota(next)) {
    memory_.wanted.pages = grows ? budget.pages : memory_.wanted.pages;
    return;
  }
  budget.pages = next;
  memory_.told.stale = true;
  renew_policy();
}

// Goes to a smaller quota: KV shrinks first, and meanwhile the policy does not decide. Borrowed
// memory is returned before own memory is lent: for that, and for an intent, sequences are
// preempted if blocks cannot leave otherwise.
void FormSteering::follow_quota() {
  memory_.kv.shrinks = memory_.kv.shrinks && run_.busy();
  if (memory_.wanted.pages_after_morph > 0 && !run_.busy() && !run_.holds()) {
    memory_.wanted.pages = std::exchange(memory_.wanted.pages_after_morph, 0);
  }
  const PageBudget& budget = config_.bounds.budget;
  if (memory_.wanted.pages == budget.pages || memory_.kv.shrinks || run_.holds()) {
    return;
  }
  if (policy_rules()) {
    run_.call_off("its memory goes to another model", now_ns_);
    pace_.bytes = 0;
  }
  if (run_.busy()) {
    return;  // a committed step, or an operator's morph, ends first
  }
  const bool trades = config_.own_pages > 0;
  const bool returns = trades && budget.pages > own_pages();
  const std::int64_t pages =
      returns ? std::max(memory_.wanted.pages, own_pages()) : memory_.wanted.pages;
  const std::int64_t fitting = with_kv_in(run_.committed(), pages).kv.blocks;
  if (fitting >= run_.committed().kv.blocks) {
    take_quota(pages);
  } else if (fitting < 1) {
    memory_.wanted.pages = budget.pages;  // only KV is lent
  } else {
    memory_.kv.shrinks = true;
    run_.retarget({.steps = {ResizeKv{fitting}},
                   .reason = trades ? "memory goes to another model"
                                    : "the model's intent needs less memory"},
                  returns || !trades, now_ns_);
    advance();
  }
}

// Returns the pages for the highest precision with so many KV blocks. A form that no policy changes
// stays as it is, so it needs all pages that are the model's own.
std::int64_t FormSteering::pages_needed(std::int64_t blocks) const {
  const std::int64_t own = own_pages();
  if (!policy_rules()) {
    return own;
  }
  Form full = config_.bounds.full;
  full.kv.blocks = std::clamp(blocks, std::int64_t{1}, memory_.largest_kv_blocks);
  const PageBudget& budget = config_.bounds.budget;
  const std::int64_t pages =
      form_pages(config_.bounds.spec, full, budget.page_bytes) + budget.reserve;
  const std::int64_t part = std::max<std::int64_t>(1, own / kParts);
  return std::min(round_up(pages, part), std::max(pages, own));
}

// Returns what the model needs now if that is more than its quota; otherwise the most that it
// needed lately, so that loads which take turns do not trade at each turn.
std::int64_t FormSteering::needs_to_tell(std::int64_t blocks) {
  const std::int64_t now = pages_needed(blocks);
  const std::int64_t lately = pages_needed(memory_.needed_blocks.most());
  const std::int64_t told = std::max(now, std::min(lately, config_.bounds.budget.pages));
  memory_.told.stale = told > now;
  return told;
}

// Returns true if other models use memory of this one that KV takes once it is back, also if no
// policy changes the form.
bool FormSteering::kv_comes_back() const {
  return config_.bounds.budget.pages < own_pages() && (!pin_ || memory_.kv.pin_grows);
}

// Returns true if every accepted request fits next to the present weights once other models have
// returned this model's pages. Larger requests then wait for these pages.
bool FormSteering::own_memory_suffices() const {
  return kv_comes_back() && !memory_.wanted.own_is_lost &&
         with_kv_in(run_.committed(), own_pages()).kv.blocks >= scheduler_.largest_need();
}

// Returns true if the quota is too small, and has not been for so long that no trade will help.
bool FormSteering::awaits_memory() {
  if (memory_.told.latest.wish == config_.wishes_before ||
      pages_needed(needed_blocks()) <= config_.bounds.budget.pages) {
    memory_.wanted.lacks_since_ns = -1;
    return false;
  }
  memory_.wanted.lacks_since_ns =
      memory_.wanted.lacks_since_ns < 0 ? now_ns_ : memory_.wanted.lacks_since_ns;
  return now_ns_ < memory_.wanted.lacks_since_ns + kTradeNs;
}

// Returns true if other models have to know soon what this one needs. A model without others has
// got no wish.
bool FormSteering::memory_is_open() const {
  return config_.own_pages > 0 && memory_.told.latest.wish > config_.wishes_before &&
         (memory_.told.stale || memory_.told.latest.needs_bytes > memory_.told.latest.quota_bytes ||
          memory_.wanted.pages != config_.bounds.budget.pages);
}

std::optional<MemoryUse> FormSteering::memory_if_due(const Observation& observation) {
  const std::int64_t blocks =
      observation.kv_blocks_used + observation.kv_blocks_awaited + observation.running;
  memory_.told.stale =
      memory_.told.stale || blocks != memory_.told.blocks || policy_rules() != memory_.told.ruled;
  memory_.told.blocks = blocks;
  memory_.needed_blocks.see(blocks, now_ns_);
  memory_.told.ruled = policy_rules();
  const PageBudget& budget = config_.bounds.budget;
  const std::int64_t quota_bytes = budget.pages * budget.page_bytes;
  const bool changed = quota_bytes != memory_.told.latest.quota_bytes;
  if (!memory_is_open() || (!changed && now_ns_ < memory_.told.at_ns + kTellMemoryEveryNs)) {
    return std::nullopt;
  }
  memory_.told.latest.quota_bytes = quota_bytes;
  memory_.told.latest.needs_bytes = needs_to_tell(blocks) * budget.page_bytes;
  memory_.told.at_ns = now_ns_;
  if (memory_.told.latest.needs_bytes <= quota_bytes) {
    memory_.wanted.lacks_since_ns = -1;
  }
  return memory_.told.latest;
}

}  // namespace protean
