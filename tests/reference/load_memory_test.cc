// Measures the peak memory of loading a model, as the kernel reports it for a child process.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include "base/repetitions_for_test.h"
#include "base/units.h"
#include "cost/memory.h"
#include "tests/checkpoints/checkpoints.h"
#include "worker/rank.h"

namespace protean {
namespace {

std::int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == key) {
      std::int64_t kib = 0;
      status >> kib;
      return kib * kKiB;
    }
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

struct Measured {
  std::int64_t peak_bytes = -1;  // above the memory at the child's start
  std::int64_t weight_bytes = 0;
};

Measured load(const std::filesystem::path& path, Precision precision) {
  const std::int64_t before = status_bytes("VmRSS:");
  const auto checkpoint = open_checkpoint(path);
  if (!checkpoint) {
    return {};
  }
  const KvForm kv{.blocks = 1};
  const auto rank =
      Rank::create({.form = single_device_form((*checkpoint)->spec(), precision, DeviceId{0}, kv),
                    .max_step_tokens = 16,
                    .max_positions = 16},
                   **checkpoint);
  if (!rank) {
    return {};
  }
  return {status_bytes("VmHWM:") - before, (*rank)->memory().weight_bytes};
}

// Loads a small model first, so that the program's own pages, many megabytes under sanitizers, are
// mapped before anything is measured.
Measured load_in_a_child(const std::filesystem::path& path, const std::filesystem::path& small,
                         Precision precision) {
  int ends[2] = {-1, -1};
  if (pipe(ends) != 0) {
    return {};
  }
  const pid_t child = fork();
  if (child == 0) {
    (void)load(small, precision);
    const Measured measured = load(path, precision);
    const bool told = write(ends[1], &measured, sizeof measured) == sizeof measured;
    _exit(told ? 0 : 1);
  }
  Measured measured;
  if (child < 0 || read(ends[0], &measured, sizeof measured) != sizeof measured) {
    measured = {};
  }
  close(ends[0]);
  close(ends[1]);
  int status = 0;
  waitpid(child, &status, 0);
  return measured;
}

TEST(LoadMemory, StaysWithinPackedWeightsAndOneLayer) {
  ModelSpec spec = architecture_specs().front().spec;
  const TemporaryDirectory small;
  write_hf_checkpoint(small.path(), spec);
  spec.layers = 5;
  spec.hidden = 640;
  spec.ffn = 1664;
  spec.vocab = 6000;
  spec.tied_embeddings = false;
  spec.attention.heads = 10;
  spec.attention.kv_heads = 2;
  spec.attention.head_dim = 64;
  const TemporaryDirectory directory;
  write_hf_checkpoint(directory.path(), spec);
  for (const Precision precision : {Precision::kBf16, Precision::kF32}) {
    const Measured measured = load_in_a_child(directory.path(), small.path(), precision);
    ASSERT_GT(measured.peak_bytes, measured.weight_bytes / 2) << "the child could not load";
    ASSERT_GT(measured.weight_bytes, 50 * kMiB);
    // Sanitizers keep some freed memory, and a shadow byte for eight bytes.
    const bool sanitized = instrumented();
    const std::int64_t slack = layer_bytes(spec, precision) +
                               (sanitized ? 12 * kMiB + measured.weight_bytes / 8 : 4 * kMiB);
    EXPECT_LE(measured.peak_bytes, measured.weight_bytes + slack)
        << format_bytes(measured.peak_bytes) << " for " << format_bytes(measured.weight_bytes)
        << " of weights";
  }
}

}  // namespace
}  // namespace protean
