#include "control/paper_rule.h"

#include <algorithm>

namespace protean {
namespace {

// Section 4.1's examples, and "multiple consecutive forward passes" of section 6.
constexpr double kKvUsage = 0.85;
constexpr TimeNs kQueueDelayNs = 100 * kNsPerMs;
constexpr int kPasses = 3;

double usage(std::int64_t used, std::int64_t blocks) {
  return static_cast<double>(used) / static_cast<double>(std::max<std::int64_t>(blocks, 1));
}

}  // namespace

void PaperRule::step_done(const PressureSample& sample) {
  const bool over = usage(sample.kv_blocks_used, sample.kv_blocks) > kKvUsage ||
                    sample.oldest_wait_ns > kQueueDelayNs ||
                    sample.kv_blocks_wanted > sample.kv_blocks - sample.kv_blocks_used;
  over_ = over ? over_ + 1 : 0;
  under_ = over ? 0 : under_ + 1;
  last_ = sample;
}

std::size_t PaperRule::next(std::size_t at, std::size_t size, std::size_t step,
                            std::int64_t blocks_above) const {
  if (over_ >= kPasses) {
    return std::min(at + step, size - 1);
  }
  const bool fits = usage(last_.kv_blocks_used, blocks_above) <= kKvUsage;
  return under_ >= kPasses && fits ? at - std::min(step, at) : at;
}

}  // namespace protean
