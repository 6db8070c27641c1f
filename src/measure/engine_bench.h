#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "host/cpu_share.h"
#include "measure/engine_table.h"
#include "measure/llama_bench.h"
#include "replica/device_group.h"

namespace protean {

struct EngineBenchOptions {
  std::string model;
  std::vector<std::string> precisions = {"bf16", "s24", "w8", "w8a8", "w8a7", "w4", "w4a8", "w3"};
  std::vector<int> prompts = {512, 2048};
  std::vector<int> batches = {1, 4, 16, 64};
  int context = 128;  // tokens of each sequence that decodes
  ComputeOptions compute;
  GroupOptions group;
  int repeat = 5;
  int memory_mib = 512;
  std::string variant_cache;
  LlamaBenchOptions peer;
  bool cpu_time = false;
  bool json = false;
};

// Measures this machine's ceilings, then times one model's steps at each precision.
Result<EngineTable> measure_engine(const EngineBenchOptions& options);

}  // namespace protean
