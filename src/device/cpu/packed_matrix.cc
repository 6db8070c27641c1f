#include "device/cpu/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/bf16.h"
#include "device/cpu/f16.h"

namespace protean::cpu {
namespace {

constexpr int kPanel = PackedMatrix::kPanel;
constexpr int kBlock = PackedMatrix::kInputBlock;
constexpr int kScalesBytes = kPanel * 2;

std::int64_t code_bytes(const PackedMatrix& matrix, std::int64_t inputs) {
  return inputs * kPanel * matrix.format.bits() / 8;
}

void store_half(std::byte* to, float scale) {
  const std::uint16_t half = f16_from(scale);
  std::memcpy(to, &half, sizeof(half));
}

float load_half(const std::byte* from) {
  std::uint16_t half = 0;
  std::memcpy(&half, from, sizeof(half));
  return float_from_f16(half);
}

std::uint32_t load_word(const std::byte* from) {
  std::uint32_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// A group of one output: codes below 2^bits, and the scale of one step.
struct CodedGroup {
  std::span<const std::uint8_t> codes;
  float scale = 0;
};

// Returns a group with nearly the same weights whose code sums are within the limit. Uses `room`
// for changed codes.
CodedGroup fit_code_sum(const CodedGroup& group, std::span<std::uint8_t> room) {
  const int sum = largest_code_sum(group.codes);
  if (sum <= kMostCodeSum || !std::isfinite(group.scale)) {
    return group;
  }
  const float scale = scale_for_code_sum(group.scale, sum);
  // If no f16 scale is large enough, the weights become smaller.
  const float shrink =
      std::min(static_cast<float>(kMostCodeSum - 2) / static_cast<float>(sum), group.scale / scale);
  std::transform(group.codes.begin(), group.codes.end(), room.begin(), [&](std::uint8_t code) {
    return static_cast<std::uint8_t>(128 + std::lrint(static_cast<float>(code - 128) * shrink));
  });
  return {room.first(group.codes.size()), scale};
}

// Stores at most 32 codes of one output as signed fields. The fields of missing inputs are zero,
// which is the middle code.
void store_codes(WeightKind kind, std::span<const std::uint8_t> codes, int output, std::byte* to) {
  const int bits = WeightFormat{.kind = kind}.bits();
  const auto middle = static_cast<std::uint8_t>(1U << (bits - 1));
  std::uint32_t words[8] = {};
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::uint64_t field = static_cast<std::uint64_t>(codes[i] ^ middle) << (i * bits % 32);
    words[i * bits / 32] |= static_cast<std::uint32_t>(field);
    if (field >> 32 != 0) {
      words[i * bits / 32 + 1] |= static_cast<std::uint32_t>(field >> 32);
    }
  }
  for (int word = 0; word < bits; ++word) {
    std::memcpy(to + (std::int64_t{word} * kPanel + output) * 4, &words[word], 4);
  }
}

// Returns the signed code of one input of the block of 32 inputs at `from`.
int load_code(WeightKind kind, const std::byte* from, int input, int output) {
  const int bits = WeightFormat{.kind = kind}.bits();
  const int first = input * bits / 32;
  const int last = (input * bits + bits - 1) / 32;
  const std::byte* const words = from + std::ptrdiff_t{output} * 4;
  const std::uint64_t low = load_word(words + std::ptrdiff_t{first} * kPanel * 4);
  const std::uint64_t high = load_word(words + std::ptrdiff_t{last} * kPanel * 4);
  const auto field =
      static_cast<int>((high << 32 | low) >> (input * bits % 32) & ((1U << bits) - 1));
  return field >= 1 << (bits - 1) ? field - (1 << bits) : field;
}

void read_quantized_row(const PackedMatrix& matrix, std::int64_t row, float* out) {
  const WeightFormat& format = matrix.format;
  const std::byte* group = matrix.data + row / kPanel * matrix.panel_bytes();
  const auto output = static_cast<int>(row % kPanel);
  for (std::int64_t i = 0; i < matrix.inputs; ++i) {
    const std::int64_t inside = i % format.group;
    if (i > 0 && inside == 0) {
      group += matrix.group_bytes();
    }
    const std::byte* const codes =
        group + matrix.scale_bytes() + code_bytes(matrix, inside / kBlock * kBlock);
    const float scale = load_half(group + std::ptrdiff_t{output} * 2);
    const float offset =
        format.symmetric ? 0.0f : load_half(group + kScalesBytes + std::ptrdiff_t{output} * 2);
    const int code = load_code(format.kind, codes, static_cast<int>(inside % kBlock), output);
    out[i] = std::fma(scale, static_cast<float>(code), offset);
  }
}

// 32 inputs of 2:4: a line of positions and eight lines of pairs, each with a word per output.
constexpr std::int64_t kLineBytes = kPanel * 4;
constexpr std::int64_t kFoursBytes = (1 + kBlock / 4) * kLineBytes;

void read_two_of_four_row(const PackedMatrix& matrix, std::int64_t row, float* out) {
  const std::byte* const panel = matrix.data + row / kPanel * matrix.panel_bytes();
  const std::int64_t output = row % kPanel;
  std::fill_n(out, matrix.inputs, 0.0f);
  for (std::int64_t first = 0; first < matrix.inputs; first += 4) {
    const std::int64_t four = first % kBlock / 4;
    const std::byte* const words = panel + first / kBlock * kFoursBytes + output * 4;
    const std::uint32_t positions = load_word(words) >> (2 * four);
    const std::uint32_t pair = load_word(words + (1 + four) * kLineBytes);
    for (int kept = 0; kept < 2; ++kept) {
      const std::int64_t input = first + (positions >> (16 * kept) & 3);
      if (input < matrix.inputs) {
        out[input] = float_from(static_cast<std::uint16_t>(pair >> (16 * kept)));
      }
    }
  }
}

// Two of four bf16 and their places, in the halves of words.
struct KeptPair {
  std::uint32_t positions = 0;
  std::uint32_t pair = 0;
};

KeptPair keep_two(const float* four, std::int64_t count) {
  int order[4] = {0, 1, 2, 3};
  const auto size = [&](int i) { return i < count ? std::abs(four[i]) : -1.0f; };
  std::stable_sort(order, order + 4, [&](int a, int b) { return size(a) > size(b); });
  // Dense weights add inputs 1, 0, 3, 2 in this order.
  const auto turn = [](int i) { return i ^ 1; };
  const auto [high, low] =
      std::minmax(order[0], order[1], [&](int a, int b) { return turn(a) < turn(b); });
  const auto bits = [&](int i) { return std::uint32_t{i < count ? bf16_from(four[i]) : 0U}; };
  return {static_cast<std::uint32_t>(low | high << 16), bits(low) | bits(high) << 16};
}

void pack_two_of_four(const PackedMatrix& matrix, std::byte* panel, const float* rows,
                      int row_count) {
  std::memset(panel, 0, static_cast<std::size_t>(matrix.panel_bytes()));
  for (std::int64_t first = 0; first < matrix.inputs; first += kBlock, panel += kFoursBytes) {
    for (int row = 0; row < row_count; ++row) {
      std::uint32_t positions = 0;
      for (std::int64_t four = 0; four < kBlock / 4; ++four) {
        const std::int64_t input = first + 4 * four;
        const KeptPair kept = keep_two(rows + row * matrix.inputs + input, matrix.inputs - input);
        positions |= kept.positions << (2 * four);
        std::memcpy(panel + (1 + four) * kLineBytes + row * 4, &kept.pair, 4);
      }
      std::memcpy(panel + row * 4, &positions, 4);
    }
  }
}

void read_row(const PackedMatrix& matrix, std::int64_t row, float* out) {
  const std::byte* const panel = matrix.data + row / kPanel * matrix.panel_bytes();
  const std::int64_t output = row % kPanel;
  if (matrix.format.kind == WeightKind::kF32) {
    for (std::int64_t i = 0; i < matrix.inputs; ++i) {
      std::memcpy(out + i, panel + (i * kPanel + output) * 4, 4);
    }
  } else if (matrix.format.kind == WeightKind::kBf16) {
    for (std::int64_t i = 0; i < matrix.inputs; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, panel + ((i / 2 * kPanel + output) * 2 + i % 2) * 2, sizeof(bits));
      out[i] = float_from(bits);
    }
  } else if (matrix.format.kind == WeightKind::kTwoOfFour) {
    read_two_of_four_row(matrix, row, out);
  } else {
    read_quantized_row(matrix, row, out);
  }
}

}  // namespace

int largest_code_sum(std::span<const std::uint8_t> codes) {
  int largest = 0;
  for (std::size_t eight = 0; eight < codes.size(); eight += 8) {
    int above[2] = {}, below[2] = {};
    for (std::size_t i = eight; i < std::min(eight + 8, codes.size()); ++i) {
      const int code = codes[i] - 128;
      above[i / 2 % 2] += std::max(code, 0);
      below[i / 2 % 2] += std::max(-code, 0);
    }
    largest = std::max({largest, above[0], above[1], below[0], below[1]});
  }
  return largest;
}

float scale_for_code_sum(float scale, int sum) {
  // 2 is the margin for rounding: each of four codes may be rounded up by 0.5.
  const float factor = static_cast<float>(sum) / (kMostCodeSum - 2);
  return float_from_f16(f16_not_below(scale * factor));
}

int WeightFormat::bits() const {
  switch (kind) {
    case WeightKind::kF32:
      return 32;
    case WeightKind::kBf16:
      return 16;
    case WeightKind::kTwoOfFour:
      return 9;  // half of 16, and 2 for each of the halves that are kept
    case WeightKind::kW8:
      return 8;
    case WeightKind::kW4:
      return 4;
    case WeightKind::kW3:
      return 3;
  }
  return 0;
}

std::int64_t PackedMatrix::scale_bytes() const {
  return !format.quantized() ? 0 : format.symmetric ? kScalesBytes : 2 * kScalesBytes;
}

std::int64_t PackedMatrix::group_bytes() const {
  return scale_bytes() + code_bytes(*this, format.group);
}

std::int64_t PackedMatrix::panel_bytes() const {
  const std::int64_t groups = format.quantized() ? ceil_div<std::int64_t>(inputs, format.group) : 0;
  return code_bytes(*this, padded_inputs()) + groups * scale_bytes();
}

void pack_panel(const PackedMatrix& matrix, std::int64_t panel, const float* rows, int row_count) {
  // Reads one cache line of each row in turns, since rows are far apart in memory.
  constexpr std::int64_t kRun = 16;
  check(!matrix.format.quantized(), "quantised matrices are packed from quantised rows");
  check(row_count >= 0 && row_count <= kPanel, "a panel has at most 32 rows");
  const auto write = [&](auto convert, auto place) {
    for (std::int64_t first = 0; first < matrix.padded_inputs(); first += kRun) {
      for (int row = 0; row < kPanel; ++row) {
        for (std::int64_t i = first; i < first + kRun; ++i) {
          const bool there = row < row_count && i < matrix.inputs;
          *place(i, row) = convert(there ? rows[row * matrix.inputs + i] : 0.0f);
        }
      }
    }
  };
  std::byte* const start = matrix.data + panel * matrix.panel_bytes();
  if (matrix.format.kind == WeightKind::kTwoOfFour) {
    return pack_two_of_four(matrix, start, rows, row_count);
  }
  if (matrix.format.kind == WeightKind::kF32) {
    auto* const to = reinterpret_cast<float*>(start);
    write([](float value) { return value; },
          [&](std::int64_t i, int row) { return to + i * kPanel + row; });
  } else {
    auto* const to = reinterpret_cast<std::uint16_t*>(start);
    write(bf16_from,
          [&](std::int64_t i, int row) { return to + (i / 2 * kPanel + row) * 2 + i % 2; });
  }
}

void pack_panel(const PackedMatrix& matrix, std::int64_t panel, const QuantizedRows& rows) {
  const WeightFormat& format = matrix.format;
  check(format.quantized() && rows.bits == format.bits() && rows.group == format.group &&
            rows.inputs == matrix.inputs,
        "quantised rows have the form of their matrix");
  const std::int64_t row_count = std::ssize(rows.codes) / rows.inputs;
  check(row_count <= kPanel && std::ssize(rows.codes) == row_count * rows.inputs &&
            std::ssize(rows.scales) == row_count * rows.groups() &&
            rows.offsets.size() == rows.scales.size(),
        "a panel has at most 32 whole rows");
  const auto middle = static_cast<float>(1 << (rows.bits - 1));
  std::byte* group = matrix.data + panel * matrix.panel_bytes();
  std::memset(group, 0, static_cast<std::size_t>(matrix.panel_bytes()));
  std::vector<std::uint8_t> room(static_cast<std::size_t>(rows.group));
  for (std::int64_t g = 0; g < rows.groups(); ++g, group += matrix.group_bytes()) {
    const std::int64_t first = g * rows.group;
    const std::int64_t count = std::min<std::int64_t>(rows.group, rows.inputs - first);
    for (std::int64_t row = 0; row < row_count; ++row) {
      const auto at = static_cast<std::size_t>(row * rows.groups() + g);
      const float middle_weight = rows.offsets[at] + middle * rows.scales[at];
      CodedGroup coded = {rows.codes.subspan(static_cast<std::size_t>(row * rows.inputs + first),
                                             static_cast<std::size_t>(count)),
                          rows.scales[at]};
      if (format.kind == WeightKind::kW8) {
        coded = fit_code_sum(coded, room);
      }
      store_half(group + row * 2, coded.scale);
      if (format.symmetric) {
        check(middle_weight == 0, "the middle code of symmetric rows is zero");
      } else {
        store_half(group + kScalesBytes + row * 2, middle_weight);
      }
      for (std::int64_t i = 0; i < count; i += kBlock) {
        const auto block = static_cast<std::size_t>(std::min<std::int64_t>(kBlock, count - i));
        store_codes(format.kind, coded.codes.subspan(static_cast<std::size_t>(i), block),
                    static_cast<int>(row), group + matrix.scale_bytes() + code_bytes(matrix, i));
      }
    }
  }
}

void gather_rows(const PackedMatrix& table, std::span<const TokenId> ids, std::span<float> out) {
  check(std::ssize(out) == std::ssize(ids) * table.inputs, "out is not a row for every id");
  float* to = out.data();
  for (const TokenId id : ids) {
    check(id >= 0 && id < table.outputs, "the matrix has the row");
    read_row(table, id, to);
    to += table.inputs;
  }
}

}  // namespace protean::cpu
