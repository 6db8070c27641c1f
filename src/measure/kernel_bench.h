#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "host/cpu_share.h"
#include "measure/kernel_table.h"

namespace protean {

struct KernelBenchOptions {
  std::vector<std::string> kernels = {"matmul", "attention", "elementwise"};
  std::vector<std::string> like = {"1b", "8b"};
  std::vector<std::string> dtypes = {"bf16", "s24", "w8", "w8a8", "w8a7", "w4", "w4a8", "w3"};
  std::vector<int> rows = {1, 4, 16, 64, 256, 512};
  std::vector<std::string> kv = {"bf16", "int8"};
  int context = 4096;
  ComputeOptions compute;
  int repeat = 7;
  int memory_mib = 512;
  bool cpu_time = false;
  bool json = false;
};

using OnLine = std::function<void(std::string_view text)>;

// Times the kernels that `options` names. `on_line` gets the table's heading and each row as soon
// as it is measured.
Result<KernelTable> measure_kernels(const KernelBenchOptions& options, const OnLine& on_line);

}  // namespace protean
