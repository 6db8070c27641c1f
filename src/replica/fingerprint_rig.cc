#include "replica/fingerprint_rig.h"

#include <utility>

#include "base/units.h"
#include "replica/workers.h"
#include "worker/cpu_worker.h"

namespace protean {
namespace {

// Returns true if threads of devices that wait for each other may spin, as those of a worker do.
bool may_spin(const FingerprintRigOptions& options) {
  std::vector<WorkerDevice> devices;
  for (const CpuShare& cpus : options.devices) {
    devices.push_back({.threads = cpus.threads, .where = cpus.where});
  }
  return cpus_suffice(devices);
}

}  // namespace

FingerprintRig::FingerprintRig(const FingerprintRigOptions& options)
    : board_(options.shards(), may_spin(options)) {}

Result<std::unique_ptr<FingerprintRig>> FingerprintRig::create(
    const Checkpoint& checkpoint, const FingerprintRigOptions& options) {
  std::unique_ptr<FingerprintRig> rig(new FingerprintRig(options));
  for (int device = 0; device < options.shards(); ++device) {
    auto made = FingerprintDevice::create(checkpoint, options, device, rig->board_);
    if (!made.ok()) {
      return made.error();
    }
    rig->devices_.push_back(*std::move(made));
  }
  return rig;
}

double FingerprintRig::time_us(const StepPlan& plan, Precision precision, int layers) {
  const TimeNs start_ns = steady_now_ns();
  for (const auto& device : devices_) {
    device->begin(plan, precision, layers);
  }
  for (const auto& device : devices_) {
    device->finish();
  }
  return static_cast<double>(steady_now_ns() - start_ns) / kNsPerUs;
}

void FingerprintRig::read_left_out(Precision precision) {
  for (const auto& device : devices_) {
    device->begin_reading(precision);
  }
  for (const auto& device : devices_) {
    device->finish();
  }
}

}  // namespace protean
