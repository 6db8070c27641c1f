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
#include "worker/group.h"
#include "worker/kv_store.h"
#include "worker/layer_pages.h"
#include "worker/sampler.h"
#include "worker/step_rows.h"

namespace protean {

// Logits are projected and drawn this many rows at a time, which bounds their memory. A weight
// panel is read once for all of these rows; more rows would gain nothing.
inline constexpr int kLogitRows = 64;

// The compute of one device.
struct WorkerDevice {
  int threads = 1;
  cpu::Locality where;  // CPUs and NUMA nodes
};

// A worker's form, devices, memory and limits. Plans must stay within the limits.
struct WorkerOptions {
  Form form;
  std::vector<WorkerDevice> devices = {{}};  // one for each of form.group
  int max_step_tokens = 2048;
  int max_positions = 4096;  // tokens of the longest sequence
  int max_in_flight = 1;     // steps started and not done

  // With pages, which each device has, the form can change while steps run. Without, memory is
  // fixed.
  std::optional<PageBudget> pages;
  // Reads weights, at the start and for swaps. Without it, the checkpoint is read at the start and
  // no component can change.
  ReadComponent read_component;
  // Reads the weights of the first swaps into the page cache, in the background and when no other
  // task waits. It is called again until it returns false.
  std::function<bool(const Pace& pace)> read_ahead;
  // The share of the threads' time that copies may take while steps run, and by which steps may get
  // longer. A device's copies run on one thread, so they take at most one core.
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

// The device of a form that a rank is. `group` is null for a form of one device.
struct RankPlace {
  int device = 0;  // index into Form::group
  Group* group = nullptr;
};

// Called with the logits [n][vocab] of samples [first_sample, first_sample + n) before the draw.
using LogitsTap = std::function<void(int first_sample, std::span<const float> logits)>;

// One device of a replica: the weights, KV and threads that it has, and how it computes its part of
// a step. run() uses the caller's thread too, one call at a time, and that thread should hold
// take_seat(). The ranks of a group run the same steps in the same order, each on a thread of its
// own, and wait for each other inside run().
class Rank {
 public:
  // Loads the weights. Refuses forms that it does not support.
  static Result<std::unique_ptr<Rank>> create(const WorkerOptions& options,
                                              const Checkpoint& checkpoint,
                                              const LoadProgress& progress = {},
                                              RankPages pages = {}, RankPlace place = {});

  // Binds the calling thread to the device's CPUs and memory while the result lives.
  cpu::Seat take_seat() const { return team_.take_seat(); }

  // True if this rank draws the tokens of its group.
  bool draws() const { return draws_; }

  // Computes its part of a step. The result means something only if draws(). Stops the program if
  // the plan is malformed or beyond the limits.
  StepResult run(const StepPlan& plan, const LogitsTap& tap = {});

  // Between steps: gives the component the weights in `memory`, which then holds the old ones.
  void swap_component(const SwapComponent& swap, ShardMemory& memory);
  // Copies blocks of another rank's KV, or of this one's, into this one's.
  void copy_blocks(const Rank& source, std::span<const BlockMove> moves);

  WorkerMemory memory() const;

 private:
  struct Built;
  explicit Rank(Built built);

  void begin_rows(const ForwardBatch& batch, const Forward& forward);
  void hand_over(std::int64_t rows, const Forward& forward);
  void draw(const StepPlan& plan, const Forward& forward, const LogitsTap& tap, StepResult& result);
  void score(const StepPlan& plan, const Forward& forward, StepResult& result);
  std::vector<double> pool(const SequenceSlice& slice, const Forward& forward);
  void mark_unusable(std::span<const float> logits, std::span<std::uint8_t> rows);
  void fail_unusable(const StepPlan& plan, StepResult& result) const;

  const ModelSpec spec_;
  const RankPlace place_;
  const LayerRange layers_;  // that this device computes
  const bool embeds_;
  const bool projects_;
  const bool draws_;
  std::optional<cpu::SharedExchange> exchange_;  // nothing for a device that is alone
  std::uint64_t step_ = 0;                       // counts the steps run
  int tile_ = 0;                                 // counts the tiles of logits of this step
  ModelWeights weights_;
  LayerPages pages_;  // of the weights, if they are on pages
  const std::shared_ptr<KvStore> kv_;
  Scratch scratch_;
  RotaryTables rope_;
  cpu::Team team_;
  Sampler sampler_;
  StepRows rows_;                               // of the current step
  std::vector<int> scored_rows_;                // of one tile
  std::vector<std::uint8_t> unusable_samples_;  // 1: the logits hold NaN or infinity
  std::vector<std::uint8_t> unusable_scores_;
};

}  // namespace protean
