#pragma once

#include <optional>
#include <string>
#include <vector>

#include "contract/form.h"
#include "cost/step_work.h"
#include "measure/ceilings.h"

namespace protean {

// Times of repeated runs.
struct Sample {
  std::vector<double> times_s;

  double median_s() const;
  double spread() const;  // (slowest - fastest) / median
};

// Times of another program for the same tokens, by its own clock, in alternating runs.
struct PeerSample {
  Sample sample;
  std::string model;  // by the program's name for it
};

// One row of the table of steps.
struct EngineRow {
  std::string phase;  // prefill or decode
  int batch = 0;      // rows of the step: tokens of a prompt, or sequences that decode
  Precision precision = Precision::kBf16;
  int context = 0;  // tokens of each sequence before the step
  Sample sample;
  StepDemand demand;
  std::optional<PeerSample> peer;

  double tokens_per_s() const { return batch / sample.median_s(); }
  // Returns the share of the binding ceiling; above 1 if weights stay in the caches.
  double ceiling_fraction(const Ceilings& ceilings) const;
  bool is_read_bound(const Ceilings& ceilings) const;
};

struct EngineTable {
  std::string model;
  int threads = 0;
  bool cpu_time = false;
  Ceilings ceilings;
  std::vector<EngineRow> rows;
};

std::string to_text(const EngineTable& table);
std::string to_json(const EngineTable& table);

}  // namespace protean
