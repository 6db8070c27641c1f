// Memory that models which share devices trade.

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "cost/pages.h"
#include "engine/form_steering.h"

namespace protean {
namespace {

// Parts of the model's own memory by which its needs are told: small changes move nothing.
constexpr std::int64_t kParts = 32;

}  // namespace

std::int64_t FormSteering::own_pages() const {
  return config_.own_pages > 0 ? config_.own_pages : config_.bounds.budget.pages;
}

void FormSteering::on(const WantQuota& want) {
  if (want.number <= memory_.told.wish) {
    return;
  }
  memory_.told.wish = want.number;
  memory_.stale = true;
  memory_.wanted = want.pages;
  const std::int64_t has = config_.bounds.budget.pages;
  if (memory_.wanted >= has && std::exchange(memory_.shrinks, false)) {
    run_.call_off("no other model needs the memory any more", now_ns_);
    take_free_pages();
  }
  if (memory_.wanted > has) {
    take_quota();
  }
}

// Takes the quota that is wanted. A device that still holds pages of a morph which was called off
// refuses a smaller one for a moment.
void FormSteering::take_quota() {
  PageBudget& budget = config_.bounds.budget;
  if (run_.set_quota(memory_.wanted)) {
    budget.pages = memory_.wanted;
    memory_.stale = true;
    renew_policy();
  } else if (memory_.wanted > budget.pages) {
    memory_.wanted = budget.pages;
  }
}

// Goes to a smaller quota: KV shrinks first, and meanwhile the policy does not decide. For memory
// that is another model's own, sequences are preempted if blocks cannot leave otherwise.
void FormSteering::follow_quota() {
  memory_.shrinks = memory_.shrinks && run_.busy();
  if (memory_.wanted == config_.bounds.budget.pages || memory_.shrinks || run_.holds()) {
    return;
  }
  if (policy_rules()) {
    run_.call_off("its memory goes to another model", now_ns_);
    pace_.bytes = 0;
  }
  if (run_.busy()) {
    return;  // what is committed, or was an operator's wish, ends first
  }
  const std::int64_t fitting = with_kv_in(run_.committed(), memory_.wanted).kv.blocks;
  if (fitting >= run_.committed().kv.blocks) {
    take_quota();
  } else if (fitting < 1) {
    memory_.wanted = config_.bounds.budget.pages;  // a weight would have to go
  } else {
    memory_.shrinks = true;
    run_.retarget({.steps = {ResizeKv{fitting}}, .reason = "memory goes to another model"},
                  memory_.wanted >= own_pages(), now_ns_);
    advance();
  }
}

// Returns the pages for the highest precision with so many KV blocks. A form that no policy changes
// stays as it is, so it needs all that is the model's own.
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

// Returns true if other models have to know soon what this one needs.
bool FormSteering::memory_is_open() const {
  return config_.own_pages > 0 &&
         (memory_.stale || memory_.told.needs_bytes > memory_.told.quota_bytes ||
          memory_.wanted != config_.bounds.budget.pages);
}

std::optional<MemoryUse> FormSteering::memory_if_due(const Observation& observation) {
  const std::int64_t blocks =
      observation.kv_blocks_used + observation.kv_blocks_awaited + observation.running;
  memory_.stale = memory_.stale || blocks != memory_.blocks || policy_rules() != memory_.ruled;
  memory_.blocks = blocks;
  memory_.ruled = policy_rules();
  const PageBudget& budget = config_.bounds.budget;
  const std::int64_t quota_bytes = budget.pages * budget.page_bytes;
  const bool changed = quota_bytes != memory_.told.quota_bytes;
  if (!memory_is_open() || (!changed && now_ns_ < memory_.told_ns + kTellMemoryEveryNs)) {
    return std::nullopt;
  }
  memory_.told.quota_bytes = quota_bytes;
  memory_.told.needs_bytes = pages_needed(blocks) * budget.page_bytes;
  memory_.told_ns = now_ns_;
  memory_.stale = false;
  return memory_.told;
}

}  // namespace protean
