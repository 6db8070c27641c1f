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
#include "base/units.h"
#include "contract/form.h"

namespace protean {

// What goes to fewer bits, and comes back, in one piece: a layer, or half of one.
struct SwapTarget {
  int layer = 0;
  std::optional<Component> half;
  friend bool operator==(const SwapTarget&, const SwapTarget&) = default;
};

std::span<const Component> halves_of(const SwapTarget& target);

// All of a model, in the order it runs them.
std::vector<SwapTarget> swap_targets(int layers, bool halves);

// Half a layer gets the weights of another precision (MorphServe section 4.3), or the embeddings
// do, which the paper leaves as they are.
struct SwapComponent {
  int layer = 0;  // of the embeddings too
  Component component = Component::kAttention;
  Precision to = Precision::kBf16;
  friend bool operator==(const SwapComponent&, const SwapComponent&) = default;
};

// The KV cache gets this many blocks: more, or fewer (MorphServe section 4.4).
struct ResizeKv {
  std::int64_t blocks = 0;
  friend bool operator==(const ResizeKv&, const ResizeKv&) = default;
};

// A small edit of a form, after which the form is legal and fits.
using MorphStep = std::variant<SwapComponent, ResizeKv>;

// "layer 3 mlp to w4", "embeddings to w8", "KV to 1024 blocks".
std::string to_string(const MorphStep& step);

// The form after the step. The step must be about layers that the form has.
Form after(Form form, const MorphStep& step);

// Steps from one form to another, in order.
struct Morph {
  std::vector<MorphStep> steps;
  std::string reason;  // for people: what was observed, or who asked
};

// The form after all of them.
Form after(Form form, const Morph& morph);

// The content of `from` is wanted in `to`, which holds nothing of value.
struct BlockMove {
  BlockId from = 0;
  BlockId to = 0;
  friend bool operator==(const BlockMove&, const BlockMove&) = default;
};

// What an operator asks of a form; what is absent stays as it is.
struct FormWish {
  std::vector<LayerPrecision> layers;  // one per layer, or empty
  std::optional<Precision> embeddings;
  std::optional<std::int64_t> kv_blocks;  // absent: as many as then fit
  bool release = false;                   // hand the form back to the policy
};

enum class MorphMode : std::uint8_t { kOff, kAccuracy, kBalanced, kPerformance };

std::string_view to_string(MorphMode mode);

// One step as it went. Times are negative where it never got so far.
struct MorphRecord {
  std::uint64_t id = 0;
  MorphStep step;
  std::string reason;
  TimeNs asked_ns = -1;
  TimeNs ready_ns = -1;  // all copying done beside running steps
  TimeNs done_ns = -1;
  std::string failure;  // why it was given up, if it was
  std::string remark;   // what was amiss though it was not, as weights that had to be packed anew
};

// The latest, oldest first. Whoever tells of them hands out this value, which nobody changes: a
// later one holds the same records.
using MorphHistory = std::vector<std::shared_ptr<const MorphRecord>>;

// What the policy sees of the load, and what clients wait for.
struct LoadSeen {
  double pressed_share = 0;     // of the entry window: blocks short and somebody waiting long
  double queued_share = 0;      // of it: a queue that alone is a reason
  TimeNs expected_wait_ns = 0;  // of a prompt that came now, until it would begin
  TimeNs ttft_p95_ns = 0;       // of the last 15 s; 0: none
  TimeNs tpot_p95_ns = 0;
};

// A replica's form and how it came about, for operators.
struct FormStatus {
  Form form;    // reached, as the worker reported it
  Form wanted;  // equal when nothing is under way
  MorphMode mode = MorphMode::kOff;
  std::vector<Precision> precisions;             // that layers may have, full precision first
  std::vector<Precision> embeddings_precisions;  // that the embeddings may have
  bool pinned = false;                           // by an operator's wish; the policy looks on
  std::int64_t page_bytes = 0;
  std::int64_t pages = 0;
  std::int64_t pages_free = 0;
  std::int64_t swaps_down_total = 0;  // of parts, to fewer bits
  std::int64_t swaps_up_total = 0;
  std::int64_t kv_resizes_total = 0;
  std::int64_t blocks_moved_total = 0;
  std::int64_t failures_total = 0;
  std::int64_t remarks_total = 0;       // steps that came to be, but not as they should
  std::vector<TokensAt> output_tokens;  // by precision, since the start
  LoadSeen load;                        // at the last change, or a second before the last token
  std::shared_ptr<const MorphHistory> history = std::make_shared<const MorphHistory>();
};

}  // namespace protean
