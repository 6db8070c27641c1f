#pragma once

#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "cost/fingerprint.h"
#include "host/cpu_share.h"
#include "model/checkpoint.h"

namespace protean {

struct FingerprintOptions {
  std::vector<Precision> layers;  // precisions that layers may have, the highest first
  KvForm kv;                      // precision and block size
  std::int64_t page_bytes = 0;    // page size of the pool if the form may change; 0: no pool
  CpuShare cpus;
  int max_model_len = 4096;
  double budget_s = 2.6;  // steps are timed again while this is not used up, loading included
};

// Returns the size of the pages that make a difference: huge pages are like memory of one's own.
std::int64_t page_bytes_of_pool(std::int64_t page_bytes);

// Learns what steps of a model cost on this machine from its first one and two hidden layers
// (iServe section 5), without loading the model. Needs memory for two layers and the LM head at
// each precision, and computes on `cpus` for about `budget_s`.
Result<Fingerprint> measure_fingerprint(const Checkpoint& checkpoint,
                                        const FingerprintOptions& options);

}  // namespace protean
