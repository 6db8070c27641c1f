#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "contract/layer_precision.h"
#include "contract/model_spec.h"
#include "contract/precision.h"

namespace protean {

// int8 has a scale for each token and head, of its key and of its value.
enum class KvPrecision : std::uint8_t { kF32, kBf16, kInt8 };

std::string_view to_string(KvPrecision precision);

// What a model computed at `precision` keeps unless told: keys and values that lose nothing more.
KvPrecision kv_precision_beside(Precision precision);

// The embeddings around layers that start at this precision: 8 bits where those have 8 or fewer,
// with activations of 8 or 7 where theirs are.
Precision default_embeddings_precision(Precision layers);

// Returns the precisions that the embeddings may have, from the highest to the lowest: all that are
// stored as they start, or as they would start at one of the ladder's precisions.
std::vector<Precision> embeddings_precisions(Precision start, std::span<const Precision> ladder);

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// One memory budget and the compute beside it.
struct DeviceSpec {
  DeviceId id;
  DeviceKind kind = DeviceKind::kCpu;
  std::int64_t memory_bytes = 0;
  int cores = 1;
};

// Consecutive layers on one device per tensor-parallel rank.
struct Stage {
  int first_layer = 0;
  int layer_count = 0;
  std::vector<DeviceId> devices;
  friend bool operator==(const Stage&, const Stage&) = default;
};

struct KvForm {
  KvPrecision precision = KvPrecision::kBf16;
  int block_tokens = 16;
  std::int64_t blocks = 0;
  friend bool operator==(const KvForm&, const KvForm&) = default;
};

// What a replica is, as an immutable value. A change of form is a new value, never an edit.
struct Form {
  std::vector<Stage> stages;                    // in layer order, together all layers
  int tp_degree = 1;                            // devices per stage
  int largest_tp_degree = 1;                    // fixes head groups and reduction order for life
  std::vector<LayerPrecision> layer_precision;  // one per layer
  Precision embeddings = Precision::kBf16;      // embeddings and output projection
  KvForm kv;
  friend bool operator==(const Form&, const Form&) = default;
};

// All layers at one precision on one device, or each at its own, and embeddings beside the highest.
Form single_device_form(const ModelSpec& spec, Precision precision, DeviceId device, KvForm kv);
Form single_device_form(const ModelSpec& spec, std::vector<LayerPrecision> layers, DeviceId device,
                        KvForm kv);

// Returns the precisions that layers may have, from the highest to the lowest: all that are stored
// as one of the ladder's, and those that layers start at.
std::vector<Precision> layer_precisions(const Form& start, std::span<const Precision> ladder);

// Legal for this model on these devices? Memory is cost's question (cost/memory.h).
Status validate(const Form& form, const ModelSpec& spec, std::span<const DeviceSpec> devices);

// Of its halves.
Precision highest_precision(const Form& form);

// Of a component; the embeddings have no layer.
Precision precision_of(const Form& form, int layer, Component component);
Precision& precision_of(Form& form, int layer, Component component);

// Whether all components of the two are as precise, whatever else differs.
bool equally_precise(const Form& a, const Form& b);

// How many of a form's layers are at this precision; a half is 0.5.
double layers_at(const Form& form, Precision precision);

// What precisions tokens of this form are computed at, halves as .5: "bf16:12.5+w4:3.5", and
// "bf16:16+embeddings:w8" where the embeddings have fewer bits than default_embeddings_precision()
// such layers.
std::string precision_label(const Form& form);

struct TokensAt {
  std::string precision;  // precision_label() of the form
  std::int64_t tokens = 0;
};

// Adds up, by precision.
void add(std::vector<TokensAt>& sum, std::span<const TokensAt> more);

// For people: "1 stage x TP 1, layers bf16:16, embeddings bf16, KV bf16 4096 blocks of 16 tokens".
std::string to_string(const Form& form);

}  // namespace protean
