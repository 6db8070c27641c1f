#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "cost/fingerprint.h"
#include "host/cpu_share.h"
#include "model/checkpoint.h"
#include "replica/harvest.h"

namespace protean {

struct FingerprintOptions {
  std::vector<Precision> layers;  // precisions that layers may have, the highest first
  KvForm kv;                      // precision and block size
  std::int64_t page_bytes = 0;    // page size of the pool if the form may change; 0: no pool
  CpuShare cpus;
  // Two devices that would share layers, if sums among them are to be measured; else empty. Models
  // that cannot be divided have none.
  std::vector<CpuShare> sharing = {};
  // Steps are timed again while this is not used up, loading included, `patience_s` excluded. Only
  // tests, which want each step timed once, set it.
  double budget_s = 2.6;
  // Asked before each timed run and each component that is loaded. Times during which requests came
  // are discarded.
  Harvest harvest = {};
  // Time that may be lost to requests, by waiting and by discarded times. Then times are taken
  // although requests come: under a load that never ends there are no others.
  double patience_s = 2;
  // Returns the times that an earlier measurement, which did not end, kept of a step; may be empty.
  std::function<std::vector<double>(const std::string& step)> kept_us = {};
  // Keeps the time of a step that was measured; may be empty.
  std::function<void(const std::string& step, double us)> keep_us = {};
};

// Returns the size of the pages that make a difference: huge pages are like memory of one's own.
std::int64_t page_bytes_of_pool(std::int64_t page_bytes);

// Returns true if the fingerprint of a model measures sums among devices.
bool measures_sums(const FingerprintOptions& options, const ModelSpec& spec);

// Learns what steps of a model cost on this machine from its first one and two hidden layers
// (iServe section 5), without loading the model. Needs memory for two layers and the LM head at
// each precision, or for 64 MiB of tiny layers, and as much for KV as the layers take at the
// highest precision. Computes on `cpus` for about `budget_s`, then on `sharing` for a third of it.
// Fails with kUnavailable if the harvest is to end.
Result<Fingerprint> measure_fingerprint(const Checkpoint& checkpoint,
                                        const FingerprintOptions& options);

}  // namespace protean
