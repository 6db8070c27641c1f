#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "contract/precision.h"

namespace protean {

// What has a precision of its own, being complete in itself: half a layer, which is its attention
// or its MLP with the norm before it, or the tables around the layers, which are embeddings and
// output projection (one where they are tied) with the norm before that.
enum class ModelPart : std::uint8_t { kAttention, kMlp, kTables };
inline constexpr std::array kLayerHalves = {ModelPart::kAttention, ModelPart::kMlp};

std::string_view to_string(ModelPart part);

// "layer 3 mlp", "tables".
std::string part_name(int layer, ModelPart part);

struct LayerPrecision {
  Precision attention = Precision::kBf16;
  Precision mlp = Precision::kBf16;

  Precision of(ModelPart half) const { return half == ModelPart::kAttention ? attention : mlp; }
  Precision& of(ModelPart half) { return half == ModelPart::kAttention ? attention : mlp; }
  friend bool operator==(const LayerPrecision&, const LayerPrecision&) = default;
};

// "bf16", or "bf16/w4" where attention and MLP differ.
std::string to_string(const LayerPrecision& layer);

}  // namespace protean
