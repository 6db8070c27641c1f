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

// Logits are projected and drawn this many rows at a time, which bounds their memory. A weight
// panel is read once for all of these rows; more rows would gain nothing.
inline constexpr int kLogitRows = 64;

// A worker's form, threads, memory and limits. Plans must stay within the limits.
struct WorkerOptions {
  Form form;
  int threads = 1;
  cpu::Locality where;  // CPUs and NUMA nodes of the device
  int max_step_tokens = 2048;
  int max_positions = 4096;  // tokens of the longest sequence

  // With pages, the form can change while steps run. Without, memory is fixed.
  std::optional<PageBudget> pages;
  // Reads weights, at the start and for swaps. Without it, the checkpoint is read at the start and
  // no component can change.
  ReadComponent read_component;
  // Reads the weights of the first swaps into the page cache, in the background and when no other
  // task waits. It is called again until it returns false.
  std::function<bool(const Pace& pace)> read_ahead;
  // The share of the threads' time that copies may take while steps run, and by which steps may get
  // longer. Copies run on one thread, so they take at most one core.
  double background_share = 0.075;
};

// Bytes that a worker holds at its start. Without pages, memory is touched on first use.
struct WorkerMemory {
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes = 0;
  std::int64_t scratch_bytes = 0;  // activations, logits and rope table
};

// Pages for a rank's weights, and a KV cache on pages, which its owner may resize. Either both are
// set or neither is.
struct RankPages {
  cpu::PagePool* pool = nullptr;
  std::shared_ptr<KvStore> kv;
};

// Called with the logits [n][vocab] of samples [first_sample, first_sample + n) before the draw.
using LogitsTap = std::function<void(int first_sample, std::span<const float> logits)>;

// One device of a replica: its weights, KV and threads, and how it computes a step. run() uses the
// caller's thread too, one call at a time, and that thread should hold take_seat().
class Rank {
 public:
  // Loads the weights. Refuses forms that it does not support.
  static Result<std::unique_ptr<Rank>> create(const WorkerOptions& options,
                                              const Checkpoint& checkpoint,
                                              const LoadProgress& progress = {},
                                              RankPages pages = {});

  // Binds the calling thread to the device's CPUs and memory while the result lives.
  cpu::Seat take_seat() const { return team_.take_seat(); }

  // Computes a step. Stops the program if the plan is malformed or beyond the limits.
  StepResult run(const StepPlan& plan, const LogitsTap& tap = {});

  // Between steps: gives the component the weights on `pages`, which then holds the old pages.
  void swap_component(const SwapComponent& swap, cpu::PageRange& pages);
  // Copies blocks of another rank's KV, or of this one's, into this one's.
  void copy_blocks(const Rank& source, std::span<const BlockMove> moves);

  WorkerMemory memory() const;

 private:
  struct Built;
  explicit Rank(Built built);

  void read_slices(const StepPlan& plan);
  void check_slice(const StepPlan& plan, const SequenceSlice& slice) const;
  void draw(const StepPlan& plan, const Forward& forward, const LogitsTap& tap, StepResult& result);
  void score(const StepPlan& plan, const Forward& forward, StepResult& result);
  std::vector<double> pool(const SequenceSlice& slice, const Forward& forward);
  void mark_unusable(std::span<const float> logits, std::span<std::uint8_t> rows);
  void fail_unusable(const StepPlan& plan, StepResult& result) const;

  const ModelSpec spec_;
  const int max_positions_;
  ModelWeights weights_;
  LayerPages pages_;  // of the weights, if they are on pages
  const std::shared_ptr<KvStore> kv_;
  Scratch scratch_;
  RotaryTable rope_;
  cpu::Team team_;
  Sampler sampler_;
  // The current step as Forward reads it; members, so that their memory is reused.
  std::vector<int> positions_;
  std::vector<cpu::AttentionSlice> slices_;
  std::vector<int> sampled_rows_;               // by sample
  std::vector<int> scored_rows_;                // of one tile
  std::vector<std::uint8_t> unusable_samples_;  // 1: the logits hold NaN or infinity
  std::vector<std::uint8_t> unusable_scores_;
};

}  // namespace protean
