#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "device/cpu/bf16.h"
#include "device/cpu/kv_layer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/store_kv.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

using Eight = hn::CappedTag<float, 8>;  // head_dim is a multiple of 8

void store_bf16(const float* from, int count, std::byte* to) {
  const Eight floats;
  const hn::Rebind<std::uint16_t, Eight> halves;
  const hn::RebindToUnsigned<Eight> words;
  auto* const out = reinterpret_cast<std::uint16_t*>(to);
  for (int i = 0; i < count; i += static_cast<int>(hn::Lanes(floats))) {
    const auto rounded = round_bf16(floats, hn::LoadU(floats, from + i));
    const auto upper = hn::ShiftRight<16>(hn::BitCast(words, rounded));
    const hn::RebindToSigned<Eight> ints;
    hn::StoreU(hn::DemoteTo(halves, hn::BitCast(ints, upper)), halves, out + i);
  }
}

// Returns the largest magnitude, or infinity if a value is not finite.
float largest_magnitude(const float* from, int count) {
  const Eight floats;
  const auto infinity = hn::Set(floats, std::numeric_limits<float>::infinity());
  auto largest = hn::Zero(floats);
  for (int i = 0; i < count; i += static_cast<int>(hn::Lanes(floats))) {
    const auto magnitude = hn::Abs(hn::LoadU(floats, from + i));
    const auto finite = hn::Lt(magnitude, infinity);  // false for a NaN
    largest = hn::Max(largest, hn::IfThenElse(finite, magnitude, infinity));
  }
  return hn::GetLane(hn::MaxOfLanes(floats, largest));
}

// Stores a row as int8. The scale is rounded up, so that no value exceeds 127 steps.
void store_int8(const float* from, int count, std::byte* to, std::byte* scale_to) {
  constexpr float kNothing = 1e-30f;  // smaller rows become zeros; the inverse scale would overflow
  const Eight floats;
  const hn::RebindToSigned<Eight> ints;
  const hn::Rebind<std::int8_t, Eight> bytes;
  const float largest = largest_magnitude(from, count);
  std::uint16_t scale = 0;
  if (largest == std::numeric_limits<float>::infinity()) {
    scale = bf16_from(std::numeric_limits<float>::quiet_NaN());
  } else if (largest >= kNothing) {
    scale = static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(largest / 127.0f) + 0xffffU) >>
                                       16);
  }
  std::memcpy(scale_to, &scale, sizeof(scale));
  if (!(float_from(scale) > 0)) {
    std::fill_n(to, count, std::byte{0});
    return;
  }
  const auto inverse = hn::Set(floats, 1.0f / float_from(scale));
  const auto most = hn::Set(floats, 127.0f);
  for (int i = 0; i < count; i += static_cast<int>(hn::Lanes(floats))) {
    const auto steps = hn::Round(hn::Mul(hn::LoadU(floats, from + i), inverse));
    const auto within = hn::Max(hn::Min(steps, most), hn::Neg(most));
    hn::StoreU(hn::DemoteTo(bytes, hn::ConvertTo(ints, within)), bytes,
               reinterpret_cast<std::int8_t*>(to) + i);
  }
}

// Stores one row of a head.
void store_row(const KvLayer& layer, const float* from, std::byte* to, std::byte* scale_to) {
  switch (layer.element) {
    case KvElement::kF32:
      std::memcpy(to, from, static_cast<std::size_t>(layer.row_bytes()));
      break;
    case KvElement::kBf16:
      store_bf16(from, layer.head_dim, to);
      break;
    case KvElement::kInt8:
      store_int8(from, layer.head_dim, to, scale_to);
      break;
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

HWY_EXPORT(store_row);

constexpr int kTaskRows = 16;

struct StoreTask {
  const AttentionSlice* slice = nullptr;
  int first_row = 0;  // within the slice
};

}  // namespace

void check_layer(const KvLayer& layer) {
  check(layer.base != nullptr && layer.kv_heads > 0 && layer.block_tokens > 0, "no KV layer");
  check(layer.head_dim > 0 && layer.head_dim % 8 == 0 && layer.head_dim <= 512,
        "head_dim must be a multiple of 8, at most 512");
}

void check_slices(const KvLayer& layer, std::span<const AttentionSlice> slices, std::int64_t rows) {
  for (const AttentionSlice& slice : slices) {
    check(slice.first_row >= 0 && slice.rows >= 0 && slice.first_position >= 0, "a negative slice");
    check(std::int64_t{slice.first_row} + slice.rows <= rows, "a slice beyond the batch");
    check(slice.rows == 0 || (slice.first_position + slice.rows - 1) / layer.block_tokens <
                                 std::ssize(slice.blocks),
          "a slice beyond its block table");
  }
}

void store_kv(Team& team, const KvLayer& layer, std::span<const AttentionSlice> slices,
              std::span<const float> k, std::span<const float> v) {
  check_layer(layer);
  const std::int64_t width = std::int64_t{layer.kv_heads} * layer.head_dim;
  check(k.size() == v.size() && std::ssize(k) % width == 0, "k and v are not rows of KV heads");
  check_slices(layer, slices, std::ssize(k) / width);
  std::vector<StoreTask> tasks;
  for (const AttentionSlice& slice : slices) {
    for (int row = 0; row < slice.rows; row += kTaskRows) {
      tasks.push_back({&slice, row});
    }
  }
  team.run(std::ssize(tasks), [&](std::int64_t index, int) {
    const auto [slice, first_row] = tasks[static_cast<std::size_t>(index)];
    for (int row = first_row; row < std::min(first_row + kTaskRows, slice->rows); ++row) {
      const int position = slice->first_position + row;
      const BlockId block = slice->blocks[static_cast<std::size_t>(position / layer.block_tokens)];
      const std::int64_t from = (std::int64_t{slice->first_row} + row) * width;
      for (int head = 0; head < layer.kv_heads; ++head) {
        const KvRow to = kv_row(layer, block, head, position % layer.block_tokens);
        const std::int64_t at = from + std::int64_t{head} * layer.head_dim;
        HWY_DYNAMIC_DISPATCH(store_row)(layer, k.data() + at, to.key, to.key_scale);
        HWY_DYNAMIC_DISPATCH(store_row)(layer, v.data() + at, to.value, to.value_scale);
      }
    }
  });
}

}  // namespace protean::cpu
#endif
