#pragma once

#include <cstdint>
#include <span>

#include "device/cpu/exchange.h"
#include "device/cpu/matmul.h"
#include "device/cpu/row_source.h"
#include "device/cpu/team.h"

namespace protean::cpu {

// Rounds every value to the nearest bf16 (ties to even), in place. Does nothing if `element` is
// kF32.
void round_to(Element element, std::span<float> x);

// Computes out[row] = x[row] / sqrt(mean(x[row]^2) + eps) * weight for rows of weight.size(),
// rounded to `element`. `out` may be `x`.
void rms_norm(Team& team, std::span<const float> x, const RmsNorm& norm, Element element,
              std::span<float> out);

// Computes the sum of the squares of each row of x, which has squares.size() rows.
void sum_squares(Team& team, std::span<const float> x, std::span<float> squares);

// Normalises the columns that norm.weight covers of rows of `width` columns, in place, like
// rms_norm(). `squares` has the sum of the squares of all columns of each row.
void rms_norm_part(Team& team, std::span<const float> squares, std::int64_t width,
                   const RmsNorm& norm, std::span<float> x);

struct LayerNorm {
  std::span<const float> weight;
  std::span<const float> bias;  // empty means zeros
  float eps = 0;
};

// Computes out[row] = (x[row] - mean) / sqrt(variance + eps) * weight + bias for rows of
// weight.size(), rounded to `element`. `out` may be `x`.
void layer_norm(Team& team, std::span<const float> x, const LayerNorm& norm, Element element,
                std::span<float> out);

// Computes out = silu(gate) * up, rounded to `element`. `out` may be `gate`.
void swiglu(Team& team, std::span<const float> gate, std::span<const float> up, Element element,
            std::span<float> out);

// Computes out = activation(x) * factor, rounded to `element`. An empty `factor` means ones. `out`
// may be `x`. With kSilu the bits are those of swiglu().
struct Activated {
  std::span<const float> x;
  std::span<const float> factor;
  Activation activation = Activation::kSilu;
};
void activate(Team& team, const Activated& of, Element element, std::span<float> out);

// Computes x = cap(factor * x), where cap(y) = most * tanh(y / most), or y if `most` is 0.
void scale_and_cap(Team& team, float factor, float most, std::span<float> x);

// Computes out += factor * x.
void add_scaled(Team& team, std::span<const float> x, float factor, std::span<float> out);

// Computes out += the sum of partial sums over all shards. Each has the rows of an aligned run of
// shards, and they are in order of shards. The order of additions is a fixed tree over shards: each
// odd one is added to the one before it, then each odd pair to the pair before it, and so on. So
// the bits do not depend on which runs were added before.
void add_partial_sums(Team& team, std::span<const ShownRows> sums, std::span<float> out);

// Computes out += x.
void add(Team& team, std::span<const float> x, std::span<float> out);

// Cosines and sines of rotary embeddings, [positions][half] each.
struct RopeTable {
  std::span<const float> cosines;
  std::span<const float> sines;
  int half = 0;           // rotated pairs of a head, head_dim / 2 at most
  bool adjacent = false;  // pairs (2i, 2i+1) instead of (i, i + half)
};

// Rotates the first 2 * half elements of every head of every row of x, [rows][heads * head_dim], in
// place. The position of row r is positions[r].
void rope(Team& team, std::span<float> x, int heads, std::span<const int> positions,
          const RopeTable& table);

}  // namespace protean::cpu
