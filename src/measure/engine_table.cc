#include "measure/engine_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <utility>

#include "base/check.h"
#include "measure/json_line.h"

namespace protean {
namespace {

namespace json = boost::json;

double limit_s(const StepDemand& demand, const Ceilings& ceilings) {
  return std::max(demand.bytes() / ceilings.read_bytes_per_s,
                  demand.operations / ceilings.operations_per_s);
}

json::object json_of(const EngineRow& row, const Ceilings& ceilings) {
  json::object object{{"phase", row.phase},
                      {"batch", row.batch},
                      {"precision", to_string(row.precision)},
                      {"tokens_per_s", row.tokens_per_s()},
                      {"ceiling_fraction", row.ceiling_fraction(ceilings)},
                      {"ceiling", row.is_read_bound(ceilings) ? "read" : "multiply"},
                      {"context", row.context},
                      {"step_ms", row.sample.median_s() * 1e3},
                      {"spread", row.sample.spread()},
                      {"weight_bytes", row.demand.weight_bytes},
                      {"kv_bytes", row.demand.kv_bytes},
                      {"operations", row.demand.operations}};
  if (row.peer) {
    const double ms = row.peer->sample.median_s() * 1e3;
    object["peer"] = {{"model", row.peer->model},
                      {"tokens_per_s", row.batch / ms * 1e3},
                      {"spread", row.peer->sample.spread()},
                      {"ratio", ms / (row.sample.median_s() * 1e3)}};
  }
  return object;
}

}  // namespace

double Sample::median_s() const {
  check(!times_s.empty(), "something was measured");
  std::vector<double> sorted = times_s;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double Sample::spread() const {
  const auto [fastest, slowest] = std::minmax_element(times_s.begin(), times_s.end());
  return (*slowest - *fastest) / median_s();
}

double EngineRow::ceiling_fraction(const Ceilings& ceilings) const {
  return limit_s(demand, ceilings) / sample.median_s();
}

bool EngineRow::is_read_bound(const Ceilings& ceilings) const {
  return demand.bytes() / ceilings.read_bytes_per_s >=
         demand.operations / ceilings.operations_per_s;
}

std::string to_text(const EngineTable& table) {
  const bool peer =
      std::any_of(table.rows.begin(), table.rows.end(), [](const auto& row) { return row.peer; });
  std::string text = fmt::format(
      "{}, {} thread{}, {}{}\n\n"
      "{:8} {:>6} {:9} {:>8} {:>10} {:>7} {:>11} {:>9} {:>9} {:>11}{}\n",
      table.model, table.threads, table.threads == 1 ? "" : "s", to_text(table.ceilings),
      table.cpu_time ? "; by processor time" : "", "phase", "batch", "precision", "context",
      "step ms", "+-%", "tokens/s", "MB", "GFLOP", "% ceiling",
      peer ? fmt::format(" {:>11} {:>7} {:>7}", "peer tok/s", "+-%", "ratio") : "");
  for (const EngineRow& row : table.rows) {
    text += fmt::format(
        "{:8} {:>6} {:9} {:>8} {:>10.3f} {:>7.1f} {:>11.1f} {:>9.2f} {:>9.2f} {:>6.1f} {}",
        row.phase, row.batch, to_string(row.precision), row.context, row.sample.median_s() * 1e3,
        row.sample.spread() * 50, row.tokens_per_s(), row.demand.bytes() * 1e-6,
        row.demand.operations * 1e-9, row.ceiling_fraction(table.ceilings) * 100,
        row.is_read_bound(table.ceilings) ? "read" : "mult");
    if (row.peer) {
      const Sample& sample = row.peer->sample;
      text += fmt::format(" {:>11.1f} {:>7.1f} {:>7.2f}", row.batch / sample.median_s(),
                          sample.spread() * 50, sample.median_s() / row.sample.median_s());
    }
    text += '\n';
  }
  return text;
}

std::string to_json(const EngineTable& table) {
  json::array rows;
  for (const EngineRow& row : table.rows) {
    rows.push_back(json_of(row, table.ceilings));
  }
  json::object object{{"format", "protean-engine/1"},
                      {"model", table.model},
                      {"threads", table.threads},
                      {"time", table.cpu_time ? "processor" : "wall"},
                      {"unit", multiplier_name()},
                      {"read_bytes_per_s", table.ceilings.read_bytes_per_s},
                      {"flops_per_s", table.ceilings.operations_per_s},
                      {"rows", std::move(rows)}};
  return json_line(std::move(object));
}

}  // namespace protean
