#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "contract/precision.h"

namespace protean {

// A layer's halves: attention with the norm before it, MLP with the norm before it. Each is
// complete in itself, so each can have a precision of its own.
enum class LayerHalf : std::uint8_t { kAttention, kMlp };
inline constexpr std::array kLayerHalves = {LayerHalf::kAttention, LayerHalf::kMlp};

std::string_view to_string(LayerHalf half);

struct LayerPrecision {
  Precision attention = Precision::kBf16;
  Precision mlp = Precision::kBf16;

  Precision of(LayerHalf half) const { return half == LayerHalf::kAttention ? attention : mlp; }
  Precision& of(LayerHalf half) { return half == LayerHalf::kAttention ? attention : mlp; }
  friend bool operator==(const LayerPrecision&, const LayerPrecision&) = default;
};

// "bf16", or "bf16/w4" where attention and MLP differ.
std::string to_string(const LayerPrecision& layer);

}  // namespace protean
