#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/morph.h"
#include "contract/step.h"
#include "cost/pages.h"
#include "device/cpu/locality.h"
#include "device/cpu/pages.h"
#include "device/cpu/seat.h"
#include "device/cpu/team.h"
#include "model/checkpoint.h"
#include "model/forward.h"
#include "model/rope_table.h"
#include "model/weights.h"
#include "worker/kv_store.h"
#include "worker/layer_pages.h"
#include "worker/sampler.h"

namespace protean {

// Logits are projected and drawn this many rows at a time, which bounds their memory: a weight
// panel is read once for all of them, and more would gain nothing.
inline constexpr int kLogitRows = 64;

// What a worker is to be. The limits are promises about the plans it will get.
struct WorkerOptions {
  Form form;
  int threads = 1;
  cpu::Locality where;  // of the device: its threads and its memory
  int max_step_tokens = 2048;
  int max_positions = 4096;  // tokens of the longest sequence

  // With pages the form can change while steps run. Without, its memory is for life.
  std::optional<PageBudget> pages;
  // Where weights come from, from the start on; the checkpoint where there is none, and
  // then no part can change later.
  ReadComponent read_component;
  // Called from the start on, beside steps and when nothing else is to be done there, until it says
  // that there is nothing more: reads what swaps will want first from a disk that may be cold.
  std::function<bool(const Pace& pace)> read_ahead;
  // Of what the threads could compute, for copies while steps run: by so much steps may get longer.
  // Copies have one thread, so never more than a core.
  double share_beside_steps = 0.075;
};

// Bytes held as the worker begins. Without pages, memory is touched on first use.
struct WorkerMemory {
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes = 0;
  std::int64_t scratch_bytes = 0;  // activations, logits and rope table
};

// Pages for a rank's weights, and a KV cache on them that somebody else may resize. Both empty, or
// neither.
struct RankPages {
  cpu::PagePool* pool = nullptr;
  std::shared_ptr<KvStore> kv;
};

// Sees the logits [n][vocab] of samples [first_sample, first_sample + n) before they are drawn.
using LogitsTap = std::function<void(int first_sample, std::span<const float> logits)>;

// One device's part of a replica: weights, KV, threads, and what a step does with them. Without a
// thread of its own: run() computes on the caller's, one call at a time, and best on one that has
// taken its seat.
class Rank {
 public:
  // Loads the weights. Refuses forms it cannot realise.
  static Result<std::unique_ptr<Rank>> create(const WorkerOptions& options,
                                              const Checkpoint& checkpoint,
                                              const LoadProgress& progress = {},
                                              RankPages pages = {});

  // The calling thread's place beside the device's others, for as long as it runs steps.
  cpu::Seat take_seat() const { return team_.take_seat(); }

  // The plan must be well formed and within the limits; anything else is a bug and stops.
  StepResult run(const StepPlan& plan, const LogitsTap& tap = {});

  // Between steps. The part gets these weights; its old pages are what `pages` then holds.
  void swap_component(const SwapComponent& swap, cpu::PageRange& pages);
  void move_blocks(std::span<const BlockMove> moves);

  WorkerMemory memory() const;

 private:
  struct Built;
  explicit Rank(Built built);

  void read_slices(const StepPlan& plan);
  void check_slice(const StepPlan& plan, const SequenceSlice& slice) const;
  void draw(const StepPlan& plan, const Forward& forward, const LogitsTap& tap, StepResult& result);
  void score(const StepPlan& plan, const Forward& forward, StepResult& result);
  std::vector<double> pool(const SequenceSlice& slice, const Forward& forward);

  const ModelSpec spec_;
  const int max_positions_;
  ModelWeights weights_;
  LayerPages pages_;  // of the weights, if they lie on pages
  const std::shared_ptr<KvStore> kv_;
  Scratch scratch_;
  RotaryTable rope_;
  cpu::Team team_;
  Sampler sampler_;
  // The current step as the forward reads it; kept for its room.
  std::vector<int> positions_;
  std::vector<cpu::AttentionSlice> slices_;
  std::vector<int> sampled_rows_;  // by sample
  std::vector<int> scored_rows_;   // of one tile
};

}  // namespace protean
