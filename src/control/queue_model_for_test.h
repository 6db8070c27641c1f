#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>
#include <vector>

#include "base/check.h"
#include "contract/morph.h"
#include "control/monitor.h"
#include "control/morph_policy.h"
#include "control/plan_morph.h"
#include "control/scene_for_test.h"
#include "cost/memory.h"

namespace protean {

struct Arriving {
  TimeNs at_ns = 0;
  int prompt = 0;
  int output = 0;
};

// What the machine of the model can do.
struct Machine {
  double bytes_per_ns = 30;        // weights read in a step
  double copy_bytes_per_ns = 0.5;  // of a variant, beside running steps
  double fixed_ns = 1e6;
  double token_ns = 50e3;
  int max_num_seqs = 64;
  int max_step_tokens = 512;
};

// What became of a load under a policy.
struct Played {
  std::vector<double> ttft_s;
  int lowerings = 0;  // times it began to go down after having gone up, or for the first time
  int swaps = 0;      // of halves
  int preemptions = 0;
  TimeNs lowered_ns = 0;   // any half below full precision
  double lost_bits_s = 0;  // bits below full precision, mean over layers, times seconds
  double w4_s = 0;
  struct Interval {
    TimeNs from_ns = 0;
    TimeNs until_ns = 0;
  };
  std::vector<Interval> lowered;  // from the first half that is, until none is
  std::vector<TimeNs> fits_ns;    // moments from which the demand would fit the first form
  std::size_t deepest = 0;
  TimeNs end_ns = 0;
  std::vector<std::string> log;

  double ttft_p95_s() const {
    std::vector<double> sorted = ttft_s;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0 : sorted[sorted.size() * 95 / 100];
  }
};

// A replica as a queue: sequences hold blocks, a step takes as long as its weights need to be read
// and its tokens to be computed, a morph's steps are done one after the other beside them. The
// policy is asked after each step, or every 50 ms if there is none.
class QueueModel {
 public:
  QueueModel(const FormBounds& bounds, const PolicyOptions& options, const Machine& machine,
             bool morphs = true)
      : bounds_(bounds),
        machine_(machine),
        morphs_(morphs),
        monitor_(options),
        policy_(options, bounds),
        form_(policy_.path().front()),
        heading_(form_) {
    weigh();
    full_token_ns_ =
        machine_.token_ns +
        (machine_.fixed_ns + weight_.bytes / machine_.bytes_per_ns) / machine_.max_step_tokens;
  }

  // Until all are served and, with `rest`, that much longer.
  Played play(const std::vector<Arriving>& load, TimeNs rest_ns) {
    std::size_t next = 0;
    TimeNs over_ns = load.empty() ? 0 : load.back().at_ns + rest_ns;
    while (now_ns_ < over_ns || !waiting_.empty() || !running_.empty()) {
      for (; next < load.size() && load[next].at_ns <= now_ns_; ++next) {
        waiting_.push_back({load[next].at_ns, load[next].prompt, load[next].output});
        ++sample_.arrivals_total;
        sample_.arrived_tokens_total += load[next].prompt;
      }
      advance_morph();
      const int tokens = form_step();
      sample_.full_work_ns_total += std::llround(tokens * full_token_ns_);
      TimeNs took_ns = 50 * kNsPerMs;
      if (tokens > 0) {
        took_ns = std::llround(machine_.fixed_ns + weight_.read_bytes / machine_.bytes_per_ns +
                               machine_.token_ns * tokens);
      } else if (next < load.size()) {
        took_ns = std::clamp<TimeNs>(load[next].at_ns - now_ns_, 1, took_ns);
      }
      observe(took_ns);
      end_step();
      decide();
    }
    played_.end_ns = now_ns_;
    return std::move(played_);
  }

 private:
  struct Sequence {
    TimeNs at_ns = 0;
    int prompt = 0;
    int output = 0;
    int computed = 0;  // prompt tokens, and generated ones
    bool begun = false;
    std::int64_t blocks = 0;
  };

  std::int64_t blocks_for(int tokens) const {
    return ceil_div<std::int64_t>(tokens, form_.kv.block_tokens);
  }
  std::int64_t free() const { return std::min(form_.kv.blocks, limit()) - used_; }
  // A cache about to shrink gives out no block beyond its end.
  std::int64_t limit() const {
    const auto resize = steps_.empty() ? std::nullopt : kv_blocks_of(steps_.front());
    return std::min(resize.value_or(form_.kv.blocks), form_.kv.blocks);
  }

  bool is_done(const SwapComponent& swap) {
    if (begun_ns_ < 0) {
      begun_ns_ = now_ns_;
    }
    const auto bytes = static_cast<double>(component_bytes(bounds_.spec, swap.component, swap.to));
    if (static_cast<double>(now_ns_ - begun_ns_) < bytes / machine_.copy_bytes_per_ns) {
      return false;
    }
    ++played_.swaps;
    return true;
  }
  bool is_done(const ResizeKv& resize) const { return used_ <= resize.blocks; }
  bool is_done(const HoldShards&) const { return true; }

  void advance_morph() {
    while (!steps_.empty()) {
      const MorphStep& step = steps_.front();
      if (!std::visit([this](const auto& what) { return is_done(what); }, step)) {
        return;
      }
      begun_ns_ = -1;
      form_ = after(std::move(form_), step);
      const PageBudget& budget = bounds_.budget;
      check(form_pages(bounds_.spec, form_, budget.page_bytes) + budget.reserve <= budget.pages,
            "a form fits");
      steps_.pop_front();
      const bool full = form_.layer_precision == policy_.path().front().layer_precision;
      if (!full && !lowered_) {
        played_.lowered.push_back({now_ns_, -1});
      } else if (full && lowered_) {
        played_.lowered.back().until_ns = now_ns_;
      }
      lowered_ = !full;
      weigh();
    }
    weight_.read_bytes =
        weight_.bytes;  // steps are no faster until the copies beside them are over
  }

  // What the form costs each step, and what it lacks.
  void weigh() {
    weight_.bytes = 0;
    weight_.lost_bits = 0;
    for (const LayerPrecision& layer : form_.layer_precision) {
      for (const Component half : kLayerHalves) {
        weight_.bytes += static_cast<double>(component_bytes(bounds_.spec, half, layer.of(half)));
        weight_.lost_bits += 16 - weight_bits(layer.of(half));
      }
    }
    weight_.lost_bits /= 2.0 * static_cast<double>(form_.layer_precision.size());
  }

  // Admits, gives decodes their blocks, and returns how many tokens the step computes.
  int form_step() {
    int tokens = 0;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      Sequence& sequence = running_[i];
      const std::int64_t needed = blocks_for(sequence.computed + 1) - sequence.blocks;
      if (sequence.computed >= sequence.prompt && needed > 0) {
        while (free() < needed && running_.size() > i + 1) {
          preempt_last();
        }
        if (free() < needed) {
          continue;  // waits for its block
        }
        sequence.blocks += needed;
        used_ += needed;
      }
      if (sequence.computed >= sequence.prompt) {
        sequence.begun = true;
        ++tokens;
      }
    }
    while (!waiting_.empty() && std::ssize(running_) < machine_.max_num_seqs &&
           blocks_for(waiting_.front().prompt + 1) <= free()) {
      Sequence sequence = waiting_.front();
      waiting_.pop_front();
      sequence.blocks = blocks_for(sequence.prompt + 1);
      used_ += sequence.blocks;
      running_.push_back(sequence);
    }
    for (Sequence& sequence : running_) {
      if (sequence.computed < sequence.prompt && tokens < machine_.max_step_tokens) {
        const int chunk =
            std::min(sequence.prompt - sequence.computed, machine_.max_step_tokens - tokens);
        sequence.computed += chunk;
        tokens += chunk;
        sequence.begun = false;
      }
    }
    return tokens;
  }

  void preempt_last() {
    Sequence last = running_.back();
    running_.pop_back();
    used_ -= last.blocks;
    last.prompt = std::max(last.computed, last.prompt);
    last.output -= last.prompt - std::min(last.prompt, last.computed);
    last.computed = 0;
    last.blocks = 0;
    waiting_.push_front(last);
    ++played_.preemptions;
    ++sample_.preemptions_total;
  }

  void observe(TimeNs took_ns) {
    const Form& full = policy_.path().front();
    const double took_s = static_cast<double>(took_ns) / kNsPerS;
    played_.w4_s += weight_.lost_bits > 8 ? (weight_.lost_bits - 8) / 4 * took_s : 0;
    played_.lost_bits_s += weight_.lost_bits * took_s;
    played_.lowered_ns += form_.layer_precision == full.layer_precision ? 0 : took_ns;

    now_ns_ += took_ns;
    sample_.at_ns = now_ns_;
    sample_.running = static_cast<int>(running_.size());
    sample_.waiting = static_cast<int>(waiting_.size());
    sample_.oldest_wait_ns = waiting_.empty() ? 0 : now_ns_ - waiting_.front().at_ns;
    expect_wait(took_ns);
    sample_.kv_blocks = form_.kv.blocks;
    sample_.kv_blocks_used = used_;
    sample_.blocks_wanted = 0;
    const std::int64_t places = machine_.max_num_seqs - std::ssize(running_);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(places, std::ssize(waiting_)); ++i) {
      sample_.blocks_wanted += blocks_for(waiting_[static_cast<std::size_t>(i)].prompt + 1);
    }
    const bool fits =
        waiting_.empty() && static_cast<double>(used_) <= 0.7 * static_cast<double>(full.kv.blocks);
    if (fits && !fits_) {
      played_.fits_ns.push_back(now_ns_);
    }
    fits_ = fits;
  }

  // Prompts at the speed of the form, and places at that at which they are left.
  void expect_wait(TimeNs took_ns) {
    std::int64_t tokens = 0;
    std::int64_t left = form_.kv.blocks - used_;
    int without_place = 0;
    int prompts = 0;
    for (const Sequence& sequence : running_) {
      tokens += std::max(0, sequence.prompt - sequence.computed);
      prompts += sequence.prompt > sequence.computed ? 1 : 0;
    }
    for (const Sequence& sequence : waiting_) {
      tokens += sequence.prompt;
      ++prompts;
      left -= blocks_for(sequence.prompt + 1);
      without_place += left < 0 ? 1 : 0;
    }
    const double step_ns = machine_.fixed_ns + weight_.bytes / machine_.bytes_per_ns;
    const double computing_ns =
        static_cast<double>(tokens) * (machine_.token_ns + step_ns / machine_.max_step_tokens);
    constexpr double kAnswerSteps = 128;
    const double placed_ns = running_.empty()
                                 ? 0
                                 : without_place * kAnswerSteps * static_cast<double>(took_ns) /
                                       static_cast<double>(running_.size());
    const bool queue = prompts > 1 || without_place > 0;
    sample_.expected_wait_ns = queue ? std::llround(std::max(computing_ns, placed_ns)) : 0;
  }

  void end_step() {
    for (Sequence& sequence : running_) {
      if (sequence.computed < sequence.prompt) {
        continue;
      }
      const bool first = sequence.computed == sequence.prompt && sequence.output > 0;
      if (sequence.begun || first) {
        if (first) {
          played_.ttft_s.push_back(static_cast<double>(now_ns_ - sequence.at_ns) / kNsPerS);
          monitor_.first_token(now_ns_, now_ns_ - sequence.at_ns);
        }
        ++sequence.computed;
        --sequence.output;
      }
    }
    std::erase_if(running_, [&](const Sequence& sequence) {
      const bool done = sequence.computed > sequence.prompt && sequence.output <= 0;
      used_ -= done ? sequence.blocks : 0;
      return done;
    });
    sample_.running = static_cast<int>(running_.size());
    sample_.kv_blocks_used = used_;
    monitor_.sample(sample_);
  }

  void decide() {
    if (!morphs_) {
      return;
    }
    const auto wanted = policy_.decide(monitor_.signals(now_ns_), heading_);
    if (!wanted) {
      return;
    }
    const auto bytes = [&](const Form& form) {
      return weight_pages(bounds_.spec, form, bounds_.budget.page_bytes);
    };
    Result<Morph> morph =
        plan_with_or_without_embeddings(form_, wanted->form, bounds_, wanted->aim);
    check(morph.ok(), morph.ok() ? "" : morph.error().message);
    const Form heading = after(form_, *morph);
    if (heading == heading_) {
      return;
    }
    const bool down = bytes(heading) < bytes(heading_);
    played_.lowerings += down && !going_down_ ? 1 : 0;
    going_down_ = down;
    heading_ = heading;
    steps_.assign(morph->steps.begin(), morph->steps.end());
    begun_ns_ = -1;
    const auto& path = policy_.path();
    const auto at = std::find(path.begin(), path.end(), heading_);
    played_.deepest = std::max(played_.deepest, static_cast<std::size_t>(at - path.begin()));
    played_.log.push_back(fmt::format("{:.2f} s to {}: {}", static_cast<double>(now_ns_) / kNsPerS,
                                      at - path.begin(), wanted->reason));
  }

  const FormBounds bounds_;
  const Machine machine_;
  const bool morphs_;
  Monitor monitor_;
  MorphPolicy policy_;
  Form form_;     // reached
  Form heading_;  // where the morph under way leads
  std::deque<MorphStep> steps_;
  TimeNs begun_ns_ = -1;  // of the first of them
  struct Weight {
    double bytes = 0;
    double read_bytes = 0;  // by each step
    double lost_bits = 0;   // mean over halves
  } weight_;
  bool going_down_ = false;
  bool lowered_ = false;
  bool fits_ = true;
  std::deque<Sequence> waiting_;
  std::vector<Sequence> running_;
  std::int64_t used_ = 0;
  TimeNs now_ns_ = 0;
  LoadSample sample_;
  double full_token_ns_ = 0;  // of a full step of the first form
  Played played_;
};

}  // namespace protean
