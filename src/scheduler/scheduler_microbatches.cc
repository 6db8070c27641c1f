// Which ready work is dealt to the next step, by the heuristics of KunServe's released code.

#include <algorithm>
#include <utility>
#include <vector>

#include "scheduler/microbatches.h"
#include "scheduler/scheduler.h"

namespace protean {
namespace {

// What is in flight or ready, by step: the next step, later ones that may begin before another one
// completes, and those in flight.
struct Loads {
  std::vector<std::int64_t> prompts;  // tokens
  std::vector<std::int64_t> decodes;
};

// Work of one kind in the order of places.
struct Ready {
  std::vector<Sequence*> sequences;
  std::vector<int> tokens;

  void add(Sequence& sequence, int count) {
    sequences.push_back(&sequence);
    tokens.push_back(count);
  }
  // Gives the step with this number its pieces. Returns true if there are others.
  bool deal(std::uint64_t step, std::vector<std::int64_t> loads) const {
    const std::vector<std::size_t> steps = deal_longest_first(tokens, std::move(loads));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      sequences[i]->dealt_to = steps[i] == 0 ? step : 0;
    }
    return std::any_of(steps.begin(), steps.end(), [](std::size_t dealt) { return dealt > 0; });
  }
};

}  // namespace

bool Scheduler::is_elsewhere(const Sequence& sequence) const {
  return budget_.deals() && (sequence.dealt_to != last_step_ + 1 ||
                             budget_.tokens_of(sequence.planned, sequence.pending(), 1) == 0);
}

// Deals prompts by their tokens and decodes by their number. The first of the prompts to be cut has
// a chunk in the step, and so has the first of the others, so that none is overtaken for ever.
// Waiting prompts take part in their order, as far as all steps together may take them and as long
// as their priority is the same.
void Scheduler::deal_ready_work() {
  const auto flying = in_flight_.size();
  const auto all = std::max(static_cast<std::size_t>(config_.steps_in_flight), flying + 1);
  Loads loads{.prompts = std::vector<std::int64_t>(all), .decodes = std::vector<std::int64_t>(all)};
  double sequences = 0;
  for (std::size_t i = 0; i < flying; ++i) {
    for (const SequenceSlice& slice : in_flight_[i].slices) {
      loads.prompts[all - 1 - i] += slice.token_count > 1 ? slice.token_count : 0;
      loads.decodes[all - 1 - i] += slice.sample >= 0 ? 1 : 0;
      ++sequences;
    }
  }
  Ready decodes;
  std::vector<Sequence*> prompts;
  std::vector<int> lengths;
  const int most = budget_.of_prompts(budget_.left());
  std::int64_t prompt_tokens = most * static_cast<std::int64_t>(all - flying);
  const auto add = [&](Sequence& sequence) {
    sequence.dealt_to = 0;
    if (sequence.pending() == 1) {
      decodes.add(sequence, 1);
    } else if (sequence.pending() > 1 && prompt_tokens > 0) {
      prompts.push_back(&sequence);
      lengths.push_back(sequence.pending());
      prompt_tokens -= std::min(most, sequence.pending());
    }
  };
  for (const auto& [place, sequence] : running_) {
    if (may_schedule(*sequence)) {
      add(*sequence);
    }
  }
  const auto& waiting = waiting_.places();
  for (auto next = waiting.begin(); next != waiting.end() && prompt_tokens > 0 &&
                                    next->first.priority == waiting.begin()->first.priority;
       ++next) {
    add(*next->second);
  }
  sequences += static_cast<double>(decodes.sequences.size() + prompts.size());
  const PromptCut cut =
      prompt_cut(lengths, sequences / static_cast<double>(all), most, config_.balance.least_tokens);
  Sequence* long_one = nullptr;
  Sequence* first = nullptr;
  Ready whole;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const bool cuts = lengths[i] > cut.longest_whole;
    if (cuts && long_one == nullptr) {
      long_one = prompts[i];
      loads.prompts[0] += std::min(lengths[i], cut.chunk);
    } else if (!cuts) {
      first = first == nullptr || prompts[i]->place < first->place ? prompts[i] : first;
      whole.add(*prompts[i], lengths[i]);
    }
  }
  bool rest = decodes.deal(last_step_ + 1, loads.decodes);
  rest = whole.deal(last_step_ + 1, loads.prompts) || rest;
  for (Sequence* sequence : {long_one, first}) {
    if (sequence != nullptr) {
      sequence->dealt_to = last_step_ + 1;
    }
  }
  budget_.cut_prompts(cut, rest);
}

}  // namespace protean
