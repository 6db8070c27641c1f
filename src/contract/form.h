#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "contract/holding.h"
#include "contract/layer_precision.h"
#include "contract/model_spec.h"
#include "contract/precision.h"

namespace protean {

// How keys and values are stored. kInt8 has a scale for the key and one for the value of each token
// and head.
enum class KvPrecision : std::uint8_t { kF32, kBf16, kInt8 };

std::string_view to_string(KvPrecision precision);

// The default precision of the KV cache for layers at `precision`.
KvPrecision default_kv_precision(Precision precision);

// The default precision of the embedding matrix and LM head for layers that start at `layers`: w8
// with the layers' activation width if the layers are quantised, bf16 if they are s24, otherwise
// the layers' own.
Precision default_embeddings_precision(Precision layers);

// Returns the precisions that the embeddings may have, from the highest to the lowest: all that are
// stored as they start, or as they would start at one of the ladder's precisions.
std::vector<Precision> embeddings_precisions(Precision start, std::span<const Precision> ladder);

// A device and its memory budget.
struct DeviceSpec {
  DeviceId id;
  std::int64_t memory_bytes = 0;
};

// The KV cache of a form.
struct KvForm {
  KvPrecision precision = KvPrecision::kBf16;
  int block_tokens = 16;    // tokens of a block, of which each layer has the keys and values
  std::int64_t blocks = 0;  // of the replica or group: a block's heads and layers may be on several
                            // devices
  friend bool operator==(const KvForm&, const KvForm&) = default;
};

// What a replica is, as an immutable value. A change of form is a new value, never an edit.
struct Form {
  // Shards of each component: the largest TP degree, which fixes the order of sums for life.
  int shards = 1;
  std::vector<Holding> group;  // what each device holds
  // The number of shards whose attention weights a device keeps: the aligned run of so many around
  // those that it holds of a layer. It computes, and has KV of, only those that it holds. 0: it
  // keeps no others.
  int attention_kept = 0;
  std::vector<LayerPrecision> layer_precision;  // one per layer
  Precision embeddings = Precision::kBf16;      // embedding matrix and LM head
  // The blocks of all homes together. A device with a layer's attention has room for them all, or
  // if there are several copies, for those of its home (Holding::home_blocks).
  KvForm kv;
  friend bool operator==(const Form&, const Form&) = default;
};

// Returns a form of one device with all layers at one precision, or each at its own. The embeddings
// have the default precision for the highest of them.
Form single_device_form(const ModelSpec& spec, Precision precision, DeviceId device, KvForm kv);
Form single_device_form(const ModelSpec& spec, std::vector<LayerPrecision> layers, DeviceId device,
                        KvForm kv);

// How a group divides a model: layers among stages (pipeline parallelism), and the shards of each
// stage's layers among `tensor` devices (tensor parallelism).
struct Division {
  int tensor = 1;
  std::vector<int> stage_layers;  // layers of each stage, in order; at least 1 each

  int devices() const { return tensor * static_cast<int>(stage_layers.size()); }
};

// Divides `layers` among stages as evenly as possible; the first stages get one more.
Division even_division(int layers, int tensor, int stages);

// Returns the form with its shards divided among devices, stage after stage. The first and the last
// stage hold the embeddings. The division's tensor degree divides form.shards.
Form divide(Form form, const Division& division, std::span<const DeviceId> devices);

// Consecutive layers that the same devices hold, each of which has the layers' shards once.
struct Stage {
  int first_layer = 0;
  int layer_count = 0;
  Copy devices;  // indices into Form::group
  friend bool operator==(const Stage&, const Stage&) = default;
};

// Returns the stages of a form, in the order of layers. For a layer with several copies, or whose
// halves lie on different devices, the devices of its first copy of attention count.
std::vector<Stage> stages_of(const Form& form);

// Returns the precisions that layers may have, from the highest to the lowest: all that are stored
// as one of the ladder's, and those that layers start at.
std::vector<Precision> layer_precisions(const Form& start, std::span<const Precision> ladder);

// Fails if the form is not legal for this model on these devices: the group's devices must together
// hold whole copies of every component, at least one. Does not check that it fits memory
// (cost/pages.h).
Status validate(const Form& form, const ModelSpec& spec, std::span<const DeviceSpec> devices);

// Returns the highest precision of any half of a layer.
Precision highest_precision(const Form& form);

// Returns the shards of a component whose weights a device has that holds `run` of them.
ShardRun shards_kept(const Form& form, Component component, const ShardRun& run);

// The precision of a component. `layer` is ignored for the embeddings.
Precision precision_of(const Form& form, int layer, Component component);
Precision& precision_of(Form& form, int layer, Component component);

// True if every component has the same precision in both forms.
bool equally_precise(const Form& a, const Form& b);

// Returns the number of layers at this precision; a half counts 0.5.
double layers_at(const Form& form, Precision precision);

// Names the precisions at which tokens of this form are computed: "bf16:12.5+w4:3.5", a half of a
// layer counting 0.5. Embeddings with fewer bits than default_embeddings_precision() are named too:
// "bf16:16+embeddings:w8".
std::string precision_label(const Form& form);

struct TokensAt {
  std::string precision;  // precision_label() of the form
  std::int64_t tokens = 0;
};

// Adds `more` to `sum`, by precision.
void add(std::vector<TokensAt>& sum, std::span<const TokensAt> more);

// Returns a text for people: "1 stage x TP 1, layers bf16:16, embeddings bf16, KV bf16 4096 blocks
// of 16 tokens"; "2 stages (10, 6 layers) x TP 2, ...".
std::string to_string(const Form& form);

}  // namespace protean
