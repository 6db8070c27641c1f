#pragma once

#include <cstdint>
#include <span>

#include "device/cpu/matmul.h"
#include "device/cpu/row_source.h"
#include "device/cpu/team.h"

namespace protean::cpu {

// Rounds every value to the nearest bf16 (ties to even), in place; `element` kF32 leaves x alone.
void round_to(Element element, std::span<float> x);

// out[row] = x[row] / sqrt(mean(x[row]^2) + eps) * weight, rows of weight.size(), then rounded to
// `element`. out may be x.
void rms_norm(Team& team, std::span<const float> x, const RmsNorm& norm, Element element,
              std::span<float> out);

// out = silu(gate) * up, rounded to `element`. out may be gate.
void swiglu(Team& team, std::span<const float> gate, std::span<const float> up, Element element,
            std::span<float> out);

// Adds up `count` pieces of equal length, a power of two, that lie one behind the other: each odd
// one to its neighbour before it, then each odd of those sums, and so on. The first piece is then
// the sum. A fixed tree, so that whoever holds a run of 2, 4, ... pieces can add up its own.
void sum_pieces(Team& team, std::span<float> pieces, int count);

// out += x
void add(Team& team, std::span<const float> x, std::span<float> out);

// Cosines and sines of rotary embedding, [positions][head_dim / 2] each.
struct RopeTable {
  std::span<const float> cosines;
  std::span<const float> sines;
  int half = 0;           // head_dim / 2
  bool adjacent = false;  // pairs (2i, 2i+1) instead of (i, i + half)
};

// Rotates every head of every row of x [rows][heads * head_dim] in place; row r stands at
// positions[r].
void rope(Team& team, std::span<float> x, int heads, std::span<const int> positions,
          const RopeTable& table);

}  // namespace protean::cpu
