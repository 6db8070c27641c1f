#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "contract/precision.h"

namespace protean {

// What has a precision of its own, being complete in itself: half a layer, which is its attention
// or its MLP with the norm before it, or the embeddings around the layers, which are embeddings and
// output projection (one where they are tied) with the norm before that.
enum class Component : std::uint8_t { kAttention, kMlp, kEmbeddings };
inline constexpr std::array kLayerHalves = {Component::kAttention, Component::kMlp};

std::string_view to_string(Component component);

// "layer 3 mlp", "embeddings".
std::string component_name(int layer, Component component);

struct LayerPrecision {
  Precision attention = Precision::kBf16;
  Precision mlp = Precision::kBf16;

  Precision of(Component half) const { return half == Component::kAttention ? attention : mlp; }
  Precision& of(Component half) { return half == Component::kAttention ? attention : mlp; }
  friend bool operator==(const LayerPrecision&, const LayerPrecision&) = default;
};

// "bf16", or "bf16/w4" where attention and MLP differ.
std::string to_string(const LayerPrecision& layer);

}  // namespace protean
