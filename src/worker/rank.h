#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
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
#include "ports/step_turn.h"
#include "worker/fabric.h"
#include "worker/kv_move.h"
#include "worker/kv_store.h"
#include "worker/layer_pages.h"
#include "worker/paced_thread.h"
#include "worker/route.h"
#include "worker/sampler.h"
#include "worker/step_rows.h"

namespace protean {

// Logits are projected and drawn this many rows at a time, which bounds their memory. A weight
// panel is read once for all of these rows; more rows would gain nothing.
inline constexpr int kLogitRows = 64;

// The compute of one device.
struct WorkerDevice {
  int threads = 1;
  cpu::Locality where = {};                  // CPUs and NUMA nodes
  std::shared_ptr<StepTurn> turn = nullptr;  // null: its steps begin as soon as they can
};

// For replicas that may be joined: their devices are on one fabric, and their buffers are for all
// shards and for as many rows as it has, to which a joint step is limited.
struct Joining {
  std::shared_ptr<Fabric> fabric;
  int first_device = 0;  // of this replica, on the fabric
};

// A worker's form, devices, memory and limits. Plans must stay within the limits.
struct WorkerOptions {
  Form form;
  std::vector<WorkerDevice> devices = {{}};  // one for each of form.group
  std::optional<Joining> joining;            // nothing: the replica's devices are always its own
  int max_step_tokens = 2048;                // of a replica
  int max_positions = 4096;                  // tokens of the longest sequence
  int max_in_flight = 1;                     // steps started and not done

  // With pages, which each device has, the form can change while steps run. Without, memory is
  // fixed.
  std::optional<PageBudget> pages;
  std::int64_t most_pages = 0;  // that a device may have later (Executor::set_quota), if more
  // Reads weights, at the start and for swaps. Without it, the checkpoint is read at the start and
  // no component can change.
  ReadComponent read_component;
  // Called once for each device whose memory is lost, before what could be wrong for it is
  // reported: results of a group, which other devices draw. Its own results are not reported.
  // Called on any thread of the devices, and must not destroy the worker.
  std::function<void(std::string why)> devices_failed;
  // If set, other models compute while this one is loaded: loading has a low priority, and calls
  // this each few milliseconds of work. It may block.
  std::function<void()> await_turn;
  // The share of the threads' time that copies may take while steps run, and by which steps may get
  // longer. A device's copies run on one thread, so they take at most one core.
  double background_share = 0.075;
  // KV that changes devices begins to move once the step before has left its layer, on the threads
  // of copies. Without: between two steps, on all threads.
  bool moves_kv_early = false;
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

// The device that a rank is. `fabric` is null for a device that is always alone.
struct RankPlace {
  int device = 0;  // index into Form::group
  Fabric* fabric = nullptr;
  int on_fabric = 0;  // index
};

// A change of what the devices of a group hold of a component, or of how its homes are joined.
struct GroupChange {
  std::uint64_t number = 0;  // of the entry, among the steps of the group
  std::vector<int> meeting;  // devices of the fabric that wait for each other first
  Formation after;
  std::vector<StepRoute> routes;  // by device of the group, afterwards
  struct Hold {
    MorphId id;
    HoldShards step;
    Precision precision = Precision::kBf16;  // of the component
    Formation before;
    // The following are set for attention, whose KV moves.
    cpu::Moment still = {};                        // from then on no earlier entry uses the KV
    std::vector<std::vector<BlockId>> live;        // by home, in order
    std::vector<std::unique_ptr<KvShare>> shares;  // by device
  };
  std::optional<Hold> hold;
  enum class Kv : std::uint8_t { kStays, kUnifies, kDivides };
  Kv kv = Kv::kStays;
  std::optional<HomeBlocks> homes;  // that become one, or part
};

// What a home's plan brought.
struct HomeResult {
  int home = 0;
  StepResult result;
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

  // Sets the thread that is told when steps wait for rows of other devices, before the first step.
  void set_background(PacedThread& background) { background_ = &background; }

  // Computes its part of a step: a plan for each home, without tokens for a home that has nothing
  // to compute. Returns the results of the plans whose tokens this device draws. Steps, and changes
  // among them, have ascending numbers, alike on all devices of a group. Stops the program if a
  // plan is malformed or beyond the limits.
  std::vector<HomeResult> run(std::uint64_t step, std::span<const StepPlan> plans,
                              const LogitsTap& tap = {});

  // Between steps: gives the component the weights in `memory`, which then holds the old ones.
  void swap_component(const SwapComponent& swap, ShardMemory& memory);
  // Copies heads of blocks of another rank's KV, or of this one's, into this one's. Begins no
  // further block once `called_off` returns true.
  void copy_blocks(const KvLayout& source, std::span<const SharedHeads> heads,
                   std::span<const BlockMove> moves, const std::function<bool()>& called_off);

  // Between steps, with all devices of the group: changes what they hold, with KV, and their homes.
  // `device` is this one's index in the group. `memory` has the weights that were fetched for a
  // Hold; then it holds those that were dropped.
  void change(const GroupChange& change, int device, ShardMemory& memory);

  // Returns the packed weights of a shard, see LayerPages.
  std::shared_ptr<const std::byte> find_shard(const ComponentVariant& which) const {
    return pages_.find_shard(weights_, which);
  }
  KvStore& kv() const { return *kv_; }
  WorkerMemory memory() const;

 private:
  struct Built;
  explicit Rank(Built built);

  // A home's plan in the step that runs.
  struct Home {
    int number = 0;
    const StepPlan& plan;
    bool draws = false;
  };
  void follow(StepRoute route, std::vector<int> group);
  bool broken() const { return exchange_ && exchange_->broken(); }
  void meet(const GroupChange& change, std::uint32_t point);
  void move_kv_of(const GroupChange& change, int device);
  void avoid_late_writes(const GroupChange::Hold& hold);
  void leave_mailbox(const GroupChange& change);
  void await_rows(int stop, int peer);
  void take_rows(int stop, const Forward& forward);
  void hand_over(int stop, const Forward& forward);
  void compute(int stop, const Forward& forward);
  void answer(const Home& home, const Forward& forward, const LogitsTap& tap, StepResult& result);
  void draw(const Home& home, const Forward& forward, const LogitsTap& tap, StepResult& result);
  void score(const Home& home, const Forward& forward, StepResult& result);
  std::vector<double> pool(const Home& home, const SequenceSlice& slice, const Forward& forward);
  void mark_unusable(std::span<const float> logits, std::span<std::uint8_t> rows);
  void fail_unusable(const StepPlan& plan, StepResult& result) const;

  const ModelSpec spec_;
  const RankPlace place_;
  StepRoute route_;
  // Nothing for a device that is always alone.
  std::optional<cpu::SharedExchange> exchange_;
  std::optional<cpu::SharedHandOver> hand_over_;
  std::uint64_t step_ = 0;  // number of the step
  int tile_ = 0;            // counts the tiles of logits of this step
  ModelWeights weights_;
  LayerPages pages_;  // of the weights, if they are on pages
  const std::shared_ptr<KvStore> kv_;
  Scratch scratch_;
  RotaryTables rope_;
  cpu::Team team_;
  PacedThread* background_ = nullptr;
  Sampler sampler_;
  StepRows rows_;                               // of the current step
  std::vector<int> scored_rows_;                // of one tile
  std::vector<std::uint8_t> unusable_samples_;  // 1: the logits hold NaN or infinity
  std::vector<std::uint8_t> unusable_scores_;
};

}  // namespace protean
