#include "worker/fabric.h"

#include <utility>

#include "base/check.h"

namespace protean {

Result<std::unique_ptr<Fabric>> Fabric::create(const Limits& limits) {
  std::unique_ptr<Fabric> fabric(new Fabric(limits));
  Result<cpu::Region> memory =
      cpu::Region::map(std::int64_t{limits.devices} * limits.steps_in_flight * limits.rows *
                       limits.hidden * std::int64_t{sizeof(float)});
  if (!memory) {
    return memory.error();
  }
  fabric->memory_ = std::move(*memory);
  return fabric;
}

Fabric::Fabric(const Limits& limits) : limits_(limits), board_(limits.devices, limits.spins) {}

std::span<float> Fabric::mailbox(int device, std::uint64_t step, std::int64_t first_row,
                                 std::int64_t rows) {
  check(device < limits_.devices && first_row + rows <= limits_.rows, "rows are in a mailbox");
  const auto slots = static_cast<std::uint64_t>(limits_.steps_in_flight);
  const auto slot =
      static_cast<std::int64_t>(static_cast<std::uint64_t>(device) * slots + step % slots);
  return {
      reinterpret_cast<float*>(memory_.data()) + (slot * limits_.rows + first_row) * limits_.hidden,
      static_cast<std::size_t>(rows * limits_.hidden)};
}

}  // namespace protean
