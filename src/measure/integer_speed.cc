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

// Times products of one prompt on one thread, rounding of activations included.
class ProductTimer {
 public:
  ProductTimer() : x_(kRows * kInputs) {
    std::minstd_rand random(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::generate(x_.begin(), x_.end(), [&] { return uniform(random); });
  }

  // Returns the time of the fastest of some products.
  double product_s(const cpu::WeightFormat& format) {
    constexpr int kRepeats = 4;
    cpu::PackedMatrix weights{.format = format, .outputs = kOutputs, .inputs = kInputs};
    const auto memory = random_weights(weights, x_);
    const auto room = cpu::Region::map(cpu::arranged_rows_bytes(kRows, kInputs));
    if (!memory.ok() || !room.ok()) {
      return std::numeric_limits<double>::infinity();
    }
    std::vector<float> x = x_;
    cpu::round_to(format.inputs(), x);
    const std::span arranged(room->data(), static_cast<std::size_t>(room->bytes()));
    std::vector<float> out(kRows * kOutputs);
    double fastest_s = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kRepeats; ++i) {
      fastest_s = std::min(fastest_s, stopwatch_.time_s([&] {
        if (format.int8_inputs()) {
          cpu::matmul(team_, cpu::quantize_rows(team_, {.x = x}, weights, arranged), weights, out);
        } else {
          cpu::matmul(team_, cpu::arrange_rows(team_, x, weights, arranged), weights, out);
        }
      }));
    }
    return fastest_s;
  }

 private:
  std::vector<float> x_;
  cpu::Team team_{1};
  const Stopwatch stopwatch_{false, 1};
};

std::array<Precision, 2> measured_precisions() {
  // No narrower integers than 8 bits are faster with dot products of four, or AMX.
  const Precision eight_bits =
      cpu::byte_dot_available() || cpu::amx_available() ? Precision::kW8A8 : Precision::kW8A7;
  if (cpu::best_isa() != cpu::MatmulIsa::kAmx) {
    return {eight_bits, Precision::kW4A8};
  }
  constexpr int kGroup = 128;
  ProductTimer timer;
  return faster_precisions(eight_bits, [&](Precision precision) {
    return timer.product_s(weight_format(precision, kGroup));
  });
}

}  // namespace

std::array<Precision, 2> faster_precisions(Precision eight_bits, const ProductTime& product_s) {
  constexpr double kWorthIt = 1.2;
  const auto faster = [&](Precision integers) {
    const Precision floats = weight_only(integers);
    return product_s(integers) * kWorthIt < product_s(floats) ? integers : floats;
  };
  return {faster(eight_bits), faster(Precision::kW4A8)};
}

std::array<Precision, 2> fastest_precisions() {
  static const std::array<Precision, 2> fastest = measured_precisions();
  return fastest;
}

}  // namespace protean
