#include "quant/input_statistics.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/check.h"

namespace protean {
namespace {

constexpr std::int64_t kChunkRows = 512;  // per product, enough to outweigh reading the Gram matrix
constexpr std::size_t kAlignment = 64;

// A matrix packed from row-major rows [outputs][inputs], with its memory.
cpu::PackedMatrix pack(std::span<const float> rows, std::int64_t inputs, cpu::Element element,
                       std::vector<float>& memory) {
  const bool f32 = element == cpu::Element::kF32;
  cpu::PackedMatrix packed{.format = {.kind = f32 ? cpu::WeightKind::kF32 : cpu::WeightKind::kBf16},
                           .outputs = static_cast<std::int64_t>(rows.size()) / inputs,
                           .inputs = inputs};
  const auto bytes = static_cast<std::size_t>(packed.bytes());
  memory.resize((bytes + kAlignment) / sizeof(float) + 1);
  void* aligned = memory.data();
  std::size_t space = memory.size() * sizeof(float);
  check(std::align(kAlignment, bytes, aligned, space) != nullptr, "there is room to align");
  packed.data = static_cast<std::byte*>(aligned);
  for (std::int64_t panel = 0; panel < packed.panels(); ++panel) {
    const std::int64_t first = panel * cpu::PackedMatrix::kPanel;
    const std::int64_t count =
        std::min<std::int64_t>(cpu::PackedMatrix::kPanel, packed.outputs - first);
    cpu::pack_panel(packed, panel, rows.data() + first * inputs, static_cast<int>(count));
  }
  return packed;
}

std::vector<float> transposed(const float* rows, std::int64_t count, std::int64_t inputs) {
  constexpr std::int64_t kTile = 32;
  std::vector<float> out(static_cast<std::size_t>(count * inputs));
  for (std::int64_t first = 0; first < inputs; first += kTile) {
    const std::int64_t last = std::min(inputs, first + kTile);
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t input = first; input < last; ++input) {
        out[static_cast<std::size_t>(input * count + row)] = rows[row * inputs + input];
      }
    }
  }
  return out;
}

}  // namespace

InputStatistics::InputStatistics(std::int64_t inputs)
    : inputs_(inputs),
      gram_(static_cast<std::size_t>(inputs * inputs)),
      magnitudes_(static_cast<std::size_t>(inputs)) {}

void InputStatistics::add(cpu::Team& team, std::span<const float> rows, cpu::Element element) {
  check(static_cast<std::int64_t>(rows.size()) % inputs_ == 0, "statistics are of whole rows");
  const std::int64_t count = static_cast<std::int64_t>(rows.size()) / inputs_;
  std::vector<float> memory;
  for (std::int64_t first = 0; first < count; first += kChunkRows) {
    const std::int64_t some = std::min(kChunkRows, count - first);
    const std::vector<float> columns = transposed(rows.data() + first * inputs_, some, inputs_);
    cpu::matmul(team, columns, pack(columns, some, element, memory), gram_, {.accumulate = true});
    for (std::size_t input = 0; input < magnitudes_.size(); ++input) {
      const auto* column = columns.data() + input * static_cast<std::size_t>(some);
      for (std::int64_t row = 0; row < some; ++row) {
        magnitudes_[input] += std::fabs(column[row]);
      }
    }
  }
  rows_ += count;
}

void InputStatistics::divide(std::span<const float> divisors) {
  check(divisors.size() == magnitudes_.size(), "every input has a divisor");
  for (std::size_t i = 0; i < divisors.size(); ++i) {
    magnitudes_[i] /= divisors[i];
    float* row = gram_.data() + i * divisors.size();
    for (std::size_t j = 0; j < divisors.size(); ++j) {
      row[j] /= divisors[i] * divisors[j];
    }
  }
}

OutputError::OutputError(cpu::Team& team, const InputStatistics& inputs) : team_(team) {
  gram_ = pack(inputs.gram(), inputs.inputs(), cpu::Element::kF32, memory_);
}

double OutputError::of(std::span<const float> errors) {
  product_.resize(errors.size());
  cpu::matmul(team_, errors, gram_, product_);
  double sum = 0.0;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    sum += double{errors[i]} * double{product_[i]};
  }
  return sum;
}

}  // namespace protean
