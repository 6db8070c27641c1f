#include "worker/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "device/cpu/softmax.h"
#include "worker/logprobs.h"
#include "worker/philox.h"

namespace protean {
namespace {

constexpr std::size_t kFirstSorted = 64;  // most draws need no more candidates

// The probability of a logit relative to the largest. Equal logits are handled apart, since
// infinity minus infinity is NaN.
class Weight {
 public:
  Weight(float top_logit, float temperature)
      : top_(top_logit), inverse_temperature_(1.0F / temperature) {}

  float operator()(float logit) const {
    if (logit == top_) {
      return 1.0F;
    }
    const float weight = std::exp((logit - top_) * inverse_temperature_);
    return weight > 0.0F ? weight : 0.0F;  // 0 for NaN too
  }

 private:
  float top_;
  float inverse_temperature_;
};

// Candidates in the order of likelihood, sorted only as far as they are read.
class SortedPrefix {
 public:
  explicit SortedPrefix(std::vector<Candidate>& all) : all_(all) {}

  const Candidate& operator[](std::size_t i) {
    while (i >= sorted_) {
      const std::size_t end = std::min(all_.size(), sorted_ == 0 ? kFirstSorted : sorted_ * 4);
      const auto begin = all_.begin() + static_cast<std::ptrdiff_t>(sorted_);
      const auto middle = all_.begin() + static_cast<std::ptrdiff_t>(end);
      if (middle != all_.end()) {
        std::nth_element(begin, middle, all_.end(), likelier);
      }
      std::sort(begin, middle, likelier);
      sorted_ = end;
    }
    return all_[i];
  }

 private:
  std::vector<Candidate>& all_;
  std::size_t sorted_ = 0;
};

// Draws without top_k and top_p, which needs no order: the sums of blocks tell in which block the
// draw ends, and only that block is read token by token.
TokenId draw_unsorted(std::span<const float> logits, const cpu::SoftmaxWeights& softmax,
                      double uniform, std::vector<double>& sums) {
  sums.resize(cpu::softmax_blocks(logits.size()));
  softmax.sum(logits, sums);
  const double target = uniform * std::accumulate(sums.begin(), sums.end(), 0.0);
  double before =
      0.0;  // sum before the block in which the draw ends, or the last that is not empty
  std::size_t block = 0;
  double sum = 0.0;
  for (std::size_t i = 0; i < sums.size() && sum <= target; ++i) {
    if (sums[i] > 0.0) {
      before = sum;
      block = i;
    }
    sum += sums[i];
  }
  const std::size_t first = block * cpu::kSumBlock;
  const std::size_t count = std::min(cpu::kSumBlock, logits.size() - first);
  std::array<float, cpu::kSumBlock> weights;
  softmax.compute(logits.subspan(first, count), std::span(weights).first(count));
  TokenId last = 0;
  for (std::size_t i = 0; i < count && before <= target; ++i) {
    if (weights[i] > 0.0F) {
      before += weights[i];
      last = static_cast<TokenId>(first + i);
    }
  }
  return last;
}

// Keeps every token that top_p could keep: the weights below (1 - top_p) / vocab of the total add
// up to less than the mass that top_p drops.
void select_top_p(std::span<const float> logits, const cpu::SoftmaxWeights& softmax,
                  double dropped_mass, std::vector<Candidate>& kept) {
  constexpr double kSlack = 1e-3;  // well above rounding errors
  const auto least =
      static_cast<float>(std::log(dropped_mass / static_cast<double>(logits.size())) - kSlack);
  kept.clear();
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (logit == softmax.top || (logit - softmax.top) * softmax.scale >= least) {
      kept.push_back({logit, static_cast<TokenId>(id)});
    }
  }
}

// Draws from the shortest of the prefixes of the order that top_k, top_p and min_p keep.
TokenId draw_sorted(std::vector<Candidate>& candidates, double mass, const Weight& weight,
                    float min_p, double uniform) {
  SortedPrefix sorted(candidates);
  std::size_t kept = 0;
  double kept_sum = 0.0;
  while (kept < candidates.size() && (kept == 0 || kept_sum < mass)) {
    const float w = weight(sorted[kept].logit);
    if (w < min_p || w <= 0.0F) {
      break;
    }
    kept_sum += w;
    ++kept;
  }
  const double target = uniform * kept_sum;
  double sum = 0.0;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    sum += weight(candidates[i].logit);
    if (sum > target) {
      return candidates[i].id;
    }
  }
  return candidates[kept - 1].id;  // the most likely token is always kept
}

// `best` is the row's most likely token.
TokenId draw(std::span<const float> logits, const SampleSpec& spec, const Candidate& best,
             DrawRoom& room) {
  std::vector<Candidate>& candidates = room.candidates;
  const SamplingParams& params = spec.params;
  if (!(params.temperature > 0.0F) || params.top_k == 1 || best.logit == kNeverLogit) {
    return best.id;
  }
  const Weight weight(best.logit, params.temperature);
  const float min_p = params.min_p > 0.0F ? std::min(params.min_p, 1.0F) : 0.0F;
  const double uniform = uniform_draw(params.seed, static_cast<std::uint64_t>(spec.position));
  const bool filter_k = params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size();
  const bool filter_p = params.top_p < 1.0F;
  if (!filter_k && !filter_p) {
    return draw_unsorted(logits,
                         {.top = best.logit, .scale = 1.0F / params.temperature, .least = min_p},
                         uniform, room.block_sums);
  }
  double mass =
      std::numeric_limits<double>::infinity();  // of the kept tokens that a draw must reach
  if (filter_k) {
    select_top_k(logits, static_cast<std::size_t>(params.top_k), candidates);
  }
  if (filter_p) {
    const double share = std::max(0.0, double{params.top_p});
    double total = 0.0;
    if (filter_k) {
      for (const Candidate& candidate : candidates) {
        total += weight(candidate.logit);
      }
    } else {
      const cpu::SoftmaxWeights softmax{.top = best.logit, .scale = 1.0F / params.temperature};
      total = softmax.total(logits);
      select_top_p(logits, softmax, (1.0 - share) * total, candidates);
    }
    mass = share * total;
  }
  return draw_sorted(candidates, mass, weight, min_p, uniform);
}

}  // namespace

Sampler::Sampler(int vocab, int threads) : vocab_(vocab) {
  rooms_.reserve(static_cast<std::size_t>(threads));
  for (int thread = 0; thread < threads; ++thread) {
    rooms_.push_back({.draw = {}, .editor = LogitEditor(vocab)});
  }
}

void Sampler::sample(cpu::Team& team, const SampleRows& rows, std::span<TokenId> tokens,
                     std::span<TokenLogprobs> logprobs) {
  const auto vocab = static_cast<std::size_t>(vocab_);
  check(rows.logits.size() == rows.specs.size() * vocab && tokens.size() == rows.specs.size() &&
            static_cast<std::size_t>(team.threads()) <= rooms_.size(),
        "one row of logits and one place per sample");
  team.run(static_cast<std::int64_t>(rows.specs.size()), [&](std::int64_t i, int thread) {
    const auto row = static_cast<std::size_t>(i);
    const SampleSpec& spec = rows.specs[row];
    const auto logits = rows.logits.subspan(row * vocab, vocab);
    Room& room = rooms_[static_cast<std::size_t>(thread)];
    tokens[row] = LogitEditor::edits(spec) ? draw_edited(logits, spec, rows.history, room)
                                           : draw(logits, spec, most_likely(logits), room.draw);
    if (spec.top_logprobs >= 0) {
      check(row < logprobs.size(), "there is a place for the logprobs a sample wants");
      logprobs[row] = token_logprobs(logits, {.token = tokens[row], .top = spec.top_logprobs},
                                     room.draw.candidates);
    }
  });
}

void Sampler::score(cpu::Team& team, std::span<const float> logits,
                    std::span<const ScoreSpec> specs, std::span<TokenLogprobs> scored) {
  const auto vocab = static_cast<std::size_t>(vocab_);
  check(logits.size() == specs.size() * vocab && scored.size() == specs.size() &&
            static_cast<std::size_t>(team.threads()) <= rooms_.size(),
        "one row of logits and one place per score");
  team.run(static_cast<std::int64_t>(specs.size()), [&](std::int64_t i, int thread) {
    const auto row = static_cast<std::size_t>(i);
    const ScoreSpec& spec = specs[row];
    scored[row] =
        token_logprobs(logits.subspan(row * vocab, vocab),
                       {.token = spec.token, .top = spec.top_logprobs, .whole_row = spec.whole_row},
                       rooms_[static_cast<std::size_t>(thread)].draw.candidates);
  });
}

TokenId Sampler::draw_edited(std::span<const float> logits, const SampleSpec& spec,
                             std::span<const TokenId> history, Room& room) {
  check(spec.history_begin >= 0 && spec.history_count >= 0 &&
            static_cast<std::size_t>(spec.history_begin) +
                    static_cast<std::size_t>(spec.history_count) <=
                history.size(),
        "a sample's history is inside its plan");
  using Exclude = LogitEditor::Exclude;
  room.editor.begin(spec, history.subspan(static_cast<std::size_t>(spec.history_begin),
                                          static_cast<std::size_t>(spec.history_count)));
  for (const Exclude exclude : {Exclude::kAll, Exclude::kMost, Exclude::kFirm}) {
    const EditedRow row = room.editor.edit(logits, exclude);
    const Candidate best = most_likely(row.logits);
    if (best.logit > kNeverLogit) {
      return row.token(draw(row.logits, spec, best, room.draw));
    }
  }
  return room.editor.last_resort();
}

}  // namespace protean
