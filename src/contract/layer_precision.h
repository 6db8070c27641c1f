#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "contract/precision.h"

namespace protean {

// What has a precision of its own: the attention or the MLP of a layer, each with the norm before
// it, or the embedding matrix and the LM head (one matrix if they are tied) with the final norm.
enum class Component : std::uint8_t { kAttention, kMlp, kEmbeddings };
inline constexpr std::array kLayerHalves = {Component::kAttention, Component::kMlp};

// What the halves of a layer lose at a precision, in the order of kLayerHalves: nats of KL
// divergence for each token.
using LayerLoss = std::array<double, kLayerHalves.size()>;

std::string_view to_string(Component component);

// Returns "layer 3 mlp" or "embeddings".
std::string component_name(int layer, Component component);

struct LayerPrecision {
  Precision attention = Precision::kBf16;
  Precision mlp = Precision::kBf16;

  Precision of(Component half) const { return half == Component::kAttention ? attention : mlp; }
  Precision& of(Component half) { return half == Component::kAttention ? attention : mlp; }
  friend bool operator==(const LayerPrecision&, const LayerPrecision&) = default;
};

// Returns "bf16", or "bf16/w4" if attention and MLP differ.
std::string to_string(const LayerPrecision& layer);

}  // namespace protean
