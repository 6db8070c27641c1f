#pragma once

#include <optional>
#include <string>
#include <vector>

#include "contract/form.h"
#include "cost/step_work.h"
#include "measure/ceilings.h"

namespace protean {

// Times of one kind of run.
struct Sample {
  std::vector<double> times_s;

  double median_s() const;
  double spread() const;  // (slowest - fastest) / median
};

// What another program does with as many tokens, by its own clock, in alternating runs.
struct PeerSample {
  Sample sample;
  std::string model;  // as it calls it
};

// One line of the end-to-end table.
struct EngineRow {
  std::string phase;  // prefill or decode
  int batch = 0;      // rows of the step: a prompt's tokens, or sequences that get one token each
  Precision precision = Precision::kBf16;
  int context = 0;  // tokens of each sequence before the step
  Sample sample;
  StepDemand demand;
  std::optional<PeerSample> peer;

  double tokens_per_s() const { return batch / sample.median_s(); }
  // Of what the binding ceiling allows. Above 1 where weights stay in the caches.
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
