#pragma once

#include <string>
#include <vector>

#include "loadtest/load_generator.h"
#include "loadtest/plot.h"
#include "loadtest/summary.h"

namespace protean::loadtest {

struct TitledChart {
  std::string title;
  std::string caption;
  Chart chart;
};

// Returns the charts of a run. Charts without data are left out.
std::vector<TitledChart> charts_of(const RunResult& run, const Slo& slo);

}  // namespace protean::loadtest
