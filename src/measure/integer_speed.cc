#include "measure/integer_speed.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "base/check.h"
#include "device/cpu/dot.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/matmul.h"
#include "device/cpu/memory.h"
#include "device/cpu/tiles.h"
#include "measure/stopwatch.h"
#include "model/weights.h"

namespace protean {
namespace {

// Rows of a prompt, and as many outputs as share activations in small models.
constexpr std::int64_t kRows = 256, kInputs = 1024, kOutputs = 2048;

// Fills every panel of `weights` with the same random values. Returns their memory.
Result<cpu::Region> random_weights(cpu::PackedMatrix& weights, std::span<const float> values) {
  auto memory = cpu::Region::map(weights.bytes());
  if (!memory.ok()) {
    return memory.error();
  }
  weights.data = memory->data();
  const Status packed =
      pack_rows(weights, 0, values.first(cpu::PackedMatrix::kPanel * weights.inputs));
  check(packed.ok(), "numbers from -1 to 1 can be quantised");
  const std::int64_t bytes = weights.panel_bytes();
  for (std::int64_t panel = 1; panel < weights.panels(); ++panel) {
    std::memcpy(weights.data + panel * bytes, weights.data, static_cast<std::size_t>(bytes));
  }
  return memory;
}

// Returns the time of the fastest of some products on one thread, rounding of activations included.
double product_s(const cpu::WeightFormat& format) {
  constexpr int kRepeats = 4;
  std::minstd_rand random(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> x(kRows * kInputs);
  std::generate(x.begin(), x.end(), [&] { return uniform(random); });
  cpu::PackedMatrix weights{.format = format, .outputs = kOutputs, .inputs = kInputs};
  const auto memory = random_weights(weights, x);
  if (!memory.ok()) {
    return std::numeric_limits<double>::infinity();
  }
  cpu::round_to(format.inputs(), x);
  const auto room = cpu::Region::map(cpu::arranged_rows_bytes(kRows, kInputs));
  if (!room.ok()) {
    return std::numeric_limits<double>::infinity();
  }
  const std::span arranged(room->data(), static_cast<std::size_t>(room->bytes()));
  std::vector<float> out(kRows * kOutputs);
  cpu::Team team(1);
  const Stopwatch stopwatch(false, 1);
  double fastest_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepeats; ++i) {
    fastest_s = std::min(fastest_s, stopwatch.time_s([&] {
      if (format.int8_inputs()) {
        cpu::matmul(team, cpu::quantize_rows(team, {.x = x}, weights, arranged), weights, out);
      } else {
        cpu::matmul(team, cpu::arrange_rows(team, x, weights, arranged), weights, out);
      }
    }));
  }
  return fastest_s;
}

bool amx_multiplies_integers_faster() {
  constexpr double kWorthIt = 1.2;
  const double floats_s = product_s({.kind = cpu::WeightKind::kBf16});
  const double integers_s = product_s({.kind = cpu::WeightKind::kW8, .input_bits = 8});
  return integers_s * kWorthIt < floats_s;
}

}  // namespace

bool integers_are_faster() {
  static const bool faster =
      cpu::best_isa() != cpu::MatmulIsa::kAmx || amx_multiplies_integers_faster();
  return faster;
}

bool eight_bits_are_fastest() {
  return cpu::byte_dot_available() || cpu::amx_available();
}

}  // namespace protean
