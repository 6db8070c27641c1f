#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"
#include "contract/form.h"

namespace protean {

// What a policy lowers and raises in one piece: a layer, or half of one.
struct SwapTarget {
  int layer = 0;
  std::optional<Component> half;
  friend bool operator==(const SwapTarget&, const SwapTarget&) = default;
};

std::span<const Component> halves_of(const SwapTarget& target);

// Returns all targets of a model, in the order in which it runs them.
std::vector<SwapTarget> swap_targets(int layers, bool halves);

// A component gets weights of another precision (MorphServe section 4.3; the paper never lowers the
// embeddings).
struct SwapComponent {
  int layer = 0;  // ignored for the embeddings
  Component component = Component::kAttention;
  Precision to = Precision::kBf16;
  friend bool operator==(const SwapComponent&, const SwapComponent&) = default;
};

// The KV cache gets this many blocks, more or fewer than it has (MorphServe section 4.4).
struct ResizeKv {
  std::int64_t blocks = 0;
  friend bool operator==(const ResizeKv&, const ResizeKv&) = default;
};

// The devices of a group hold other shards of a component from now on: some drop what others keep
// or fetch what others have (AMOEBA section 3.2, KunServe section 4.1). KV goes with attention.
struct HoldShards {
  int layer = 0;  // ignored for the embeddings
  Component component = Component::kAttention;
  std::vector<ShardRun> runs;  // one per device of the group
  friend bool operator==(const HoldShards&, const HoldShards&) = default;
};

// A small edit of a form, after which the form is legal and fits.
using MorphStep = std::variant<SwapComponent, ResizeKv, HoldShards>;

// Returns "layer 3 mlp to w4", "embeddings to w8", "KV to 1024 blocks" or "layer 3 mlp in shards
// 0-1, 2-3" with the shards of each device.
std::string to_string(const MorphStep& step);

// The KV blocks that the step resizes to; nothing for a step that leaves the KV cache alone.
std::optional<std::int64_t> kv_blocks_of(const MorphStep& step);

// Returns the form after the step, whose layer the form must have.
Form after(Form form, const MorphStep& step);

// Steps from one form to another, in order.
struct Morph {
  std::vector<MorphStep> steps;
  std::string reason;  // for people: what was observed, or that an operator asked
};

// Returns the form after all steps of the morph.
Form after(Form form, const Morph& morph);

// Copies block `from` to block `to`, whose content is overwritten.
struct BlockMove {
  BlockId from = 0;
  BlockId to = 0;
  friend bool operator==(const BlockMove&, const BlockMove&) = default;
};

enum class MorphMode : std::uint8_t { kOff, kAccuracy, kBalanced, kPerformance };

// Reads "off", "accuracy", "balanced" or "performance".
Result<MorphMode> parse_morph_mode(std::string_view text);
std::string_view to_string(MorphMode mode);

// Bounds what any load may cost in quality.
struct QualityFloor {
  double least_mean_bits = 0;    // mean over the weights of all layers; embeddings have 8 at least
  int most_lowered_layers = -1;  // layers that may have a half below full precision; -1: all
  friend bool operator==(const QualityFloor&, const QualityFloor&) = default;
};

// Reads "6bits", "6.5bits", "8layers" or "none".
Result<QualityFloor> parse_quality_floor(std::string_view text);
std::string to_string(const QualityFloor& floor);

// What an operator asks for: a form, whose fields without a value keep what the form has; or that
// the policy decides again; or that it decides otherwise. Only one of the three. An intent asks for
// a form as the one of quiet times.
struct FormWish {
  std::vector<LayerPrecision> layers;  // one per layer, or empty
  std::optional<Precision> embeddings;
  std::optional<std::int64_t> kv_blocks;  // no value: as many as fit
  bool release = false;                   // gives the form back to the policy
  std::optional<MorphMode> mode;          // the policy's new mode
  std::optional<QualityFloor> floor;
  // With a value: the pages that a device has in quiet times, at most as many as it was loaded
  // with. KV has what fits, and the precisions are those of quiet times, to which a policy and a
  // release return. A model that trades memory keeps its own pages. Without one: quiet times stay
  // as they are.
  std::optional<std::int64_t> rest_pages = {};

  bool names_form() const { return !layers.empty() || embeddings || kv_blocks; }
  bool names_policy() const { return mode || floor; }
};

// The record of one morph step. Times are negative if it never got so far.
struct MorphRecord {
  std::uint64_t id = 0;
  MorphStep step;
  std::string reason;
  TimeNs asked_ns = -1;
  TimeNs ready_ns = -1;  // prepared: all copying is done
  TimeNs done_ns = -1;
  std::string failure;  // why it failed or was given up; empty: it was not
  std::string remark;   // a problem that did not make it fail, such as weights packed anew
};

// The latest morph steps, oldest first. Immutable: a later history shares its records.
using MorphHistory = std::vector<std::shared_ptr<const MorphRecord>>;

// The load as the policy sees it, and the latencies that clients see.
struct LoadSeen {
  double arrivals_per_s = 0;   // over the longest time for which the rate has been constant
  double arrivals_last_s = 0;  // how long the rate was seen; it is expected to last as long again
  double most_arrivals_per_s = 0;  // the rate is below it with 97.5 % confidence
  double answer_tokens = 0;        // predicted mean of a new answer
  TimeNs expected_wait_ns = 0;     // queue time of a prompt that arrived now
  TimeNs ttft_p95_ns = 0;          // over the last 15 s; 0: no sample
  TimeNs tpot_p95_ns = 0;
};

// What the policy predicts for a form: while the present arrivals last, and if they are the most
// that they may be. For a form that is more precise, the most last for a minute and are a fifth
// more.
struct FormPrediction {
  std::string precision;  // precision_label()
  std::int64_t kv_blocks = 0;
  double late = 0;  // requests beyond their TTFT or TPOT target
  double late_most = 0;
  double kv_short_blocks = 0;  // blocks that running sequences lack, at most
  double answer_tokens_per_s = 0;
  double capacity_per_s = 0;  // requests a second that the form can serve steadily
  double kl_nats = 0;         // lost against full precision by all answer tokens
  double cost = 0;            // late requests, the backlog twice, and the price of kl_nats
  double cost_most = 0;
  // Late requests, the backlog twice, if the most arrivals and a fifth more last for a minute: the
  // present form and those that are more precise are compared by it.
  std::optional<double> late_lasting;
  double morph_s = 0;   // how long the way to it takes
  std::string verdict;  // why it was chosen or not
};

// How far a server is that packs variants in the background while it serves.
struct Packing {
  std::int64_t done = 0;  // variants on disk, of the `total` that there are to be
  std::int64_t total = 0;
  // Swaps whose variants are not on disk yet. The policy lowers nothing to them.
  std::vector<SwapComponent> missing;
  // Why packing ended early: a swap then packs what it needs. Empty: it did not.
  std::string failure;
};

// The pages of a device; of the one that has fewest free.
struct DevicePageCount {
  std::int64_t page_bytes = 0;
  std::int64_t all = 0;
  std::int64_t own = 0;  // that the model always gets back if other models have some of them
  std::int64_t free = 0;
};

// A replica's form and its recent morphs, for operators.
struct FormStatus {
  Form form;    // reached, as the worker reported it
  Form wanted;  // equal to `form` unless a morph is in flight
  MorphMode mode = MorphMode::kOff;
  QualityFloor floor;
  std::vector<Precision> ladder;      // precisions that the policy gives layers, the full one first
  std::vector<Precision> precisions;  // allowed for a layer
  std::vector<Precision> embeddings_precisions;  // allowed for the embeddings
  bool pinned = false;  // an operator's form is in effect: the policy does not morph
  DevicePageCount pages;
  std::shared_ptr<const Packing> packing;  // null: no variants are packed in the background
  std::int64_t swaps_down_total = 0;       // swaps of components to fewer bits
  std::int64_t swaps_up_total = 0;
  std::int64_t kv_resizes_total = 0;
  std::int64_t blocks_moved_total = 0;
  std::int64_t failures_total = 0;
  std::int64_t remarks_total = 0;           // steps done with a remark
  std::vector<TokensAt> output_tokens;      // output tokens by precision, since the start
  LoadSeen load;                            // the load when this status was made
  std::vector<FormPrediction> predictions;  // of the latest decision; the first is not to change
  std::shared_ptr<const MorphHistory> history = std::make_shared<const MorphHistory>();
};

}  // namespace protean
