#include "loadtest/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "loadtest/summary.h"

namespace protean::loadtest {
namespace {

constexpr std::size_t kPieces = 20;  // a run's time is divided into as many

struct NamedStatistic {
  std::string name;
  Statistic statistic;
};

// Rates per second in each piece of a run's time. The tokens of a request are spread evenly from
// its first to its last; a request counts in the piece where it ended.
struct Rates {
  std::vector<double> tokens;
  std::vector<double> requests;
};
Rates rates_of(const RecordedRun& run) {
  const double width_s = std::max(run.duration_s, 1e-9) / kPieces;
  Rates rates{std::vector<double>(kPieces, 0), std::vector<double>(kPieces, 0)};
  for (const RequestRecord& record : run.records) {
    if (record.outcome != Outcome::kCompleted) {
      continue;
    }
    const double first = seconds(record.first_token_ns) / width_s;
    const double last = std::max(seconds(record.last_token_ns) / width_s, first + 1e-6);
    for (std::size_t i = 0; i < kPieces; ++i) {
      const auto piece = static_cast<double>(i);
      const double share = (std::min(last, piece + 1) - std::max(first, piece)) / (last - first);
      rates.tokens[i] += std::max(0.0, share) * static_cast<double>(record.output_tokens) / width_s;
    }
    const double end = std::max(0.0, seconds(record.end_ns) / width_s);
    rates.requests[std::min(kPieces - 1, static_cast<std::size_t>(end))] += 1 / width_s;
  }
  return rates;
}

ComparedMeasure compare_samples(const std::vector<double>& a, const std::vector<double>& b,
                                const Statistic& statistic, const BootstrapOptions& options) {
  std::vector<double> copy = a;
  ComparedMeasure compared{.a = statistic(copy)};
  copy = b;
  compared.b = statistic(copy);
  if (compared.a != 0) {
    compared.ratio = compared.b / compared.a;
  }
  compared.interval = bootstrap_ratio(a, b, statistic, options);
  compared.significant = compared.interval.low > 1 || compared.interval.high < 1;
  return compared;
}

std::string verdict(const ComparedMeasure& measure) {
  if (!measure.significant) {
    return "no significant difference";
  }
  return (measure.ratio > 1) == measure.higher_is_better ? "B is better" : "B is worse";
}

std::string describe(char letter, const RecordedRun& run) {
  const auto completed = std::count_if(
      run.records.begin(), run.records.end(),
      [](const RequestRecord& record) { return record.outcome == Outcome::kCompleted; });
  return fmt::format("{}  {}\n   {} of {} requests completed in {} s\n", letter, run.label,
                     completed, run.records.size(), format_number(run.duration_s));
}

// How many requests, by index, both runs sent, and how many of these had different planned lengths.
struct Lengths {
  std::int64_t common = 0;
  std::int64_t different = 0;
};
Lengths compare_lengths(const RecordedRun& a, const RecordedRun& b) {
  std::unordered_map<std::int64_t, const RequestRecord*> by_index;
  for (const RequestRecord& record : a.records) {
    by_index.emplace(record.index, &record);
  }
  Lengths lengths;
  for (const RequestRecord& record : b.records) {
    const auto found = by_index.find(record.index);
    if (found == by_index.end()) {
      continue;
    }
    ++lengths.common;
    lengths.different +=
        found->second->planned_input_tokens != record.planned_input_tokens ||
                found->second->planned_output_tokens != record.planned_output_tokens
            ? 1
            : 0;
  }
  return lengths;
}

}  // namespace

std::vector<ComparedMeasure> compare_runs(const RecordedRun& a, const RecordedRun& b,
                                          const BootstrapOptions& options) {
  std::vector<ComparedMeasure> compared;
  const Rates rates_a = rates_of(a);
  const Rates rates_b = rates_of(b);
  const auto add = [&](std::string name, std::string unit, bool higher_is_better,
                       ComparedMeasure measure) {
    measure.name = std::move(name);
    measure.unit = std::move(unit);
    measure.higher_is_better = higher_is_better;
    compared.push_back(std::move(measure));
  };
  add("requests", "/s", true,
      compare_samples(rates_a.requests, rates_b.requests, mean_of, options));
  add("output tokens", "/s", true,
      compare_samples(rates_a.tokens, rates_b.tokens, mean_of, options));
  const std::vector<NamedStatistic> statistics = {{"mean", mean_of},
                                                  {"P50", percentile_of(50)},
                                                  {"P90", percentile_of(90)},
                                                  {"P99", percentile_of(99)}};
  for (const Measure measure : kMeasures) {
    const std::vector<double> samples_a = samples_of(measure, a.records);
    const std::vector<double> samples_b = samples_of(measure, b.records);
    if (samples_a.empty() || samples_b.empty()) {
      continue;
    }
    for (const NamedStatistic& statistic : statistics) {
      add(fmt::format("{} {}", name_of(measure), statistic.name), "ms", false,
          compare_samples(samples_a, samples_b, statistic.statistic, options));
    }
  }
  return compared;
}

std::vector<std::string> load_differences(const RecordedRun& a, const RecordedRun& b) {
  std::vector<std::string> differences;
  const auto compare = [&](std::string_view name, const std::string& of_a,
                           const std::string& of_b) {
    if (of_a != of_b) {
      differences.push_back(fmt::format("{}: A {}, B {}", name, of_a, of_b));
    }
  };
  compare("endpoint", a.load.endpoint, b.load.endpoint);
  compare("arrivals", a.load.arrivals, b.load.arrivals);
  compare("prompts", a.load.prompts, b.load.prompts);
  compare("seed", a.load.seed, b.load.seed);
  if (const Lengths lengths = compare_lengths(a, b); lengths.different > 0) {
    differences.push_back(fmt::format("lengths: {} of the {} requests that both runs sent",
                                      lengths.different, lengths.common));
  }
  return differences;
}

std::string comparison_table(const RecordedRun& a, const RecordedRun& b,
                             const std::vector<ComparedMeasure>& measures) {
  std::string text = describe('A', a) + describe('B', b);
  if (const auto differences = load_differences(a, b); !differences.empty()) {
    text += fmt::format("\nThe loads differ: the ratios compare loads as well as servers.\n  {}\n",
                        fmt::join(differences, "\n  "));
  }
  text += fmt::format("\n  {:<16}{:>12}{:>12}{:>8}   {:<16}{}\n", "", "A", "B", "B/A",
                      "95 % interval", "");
  for (const ComparedMeasure& measure : measures) {
    text += fmt::format("  {:<16}{:>12}{:>12}{:>8.3f}   {:<16}{}\n",
                        fmt::format("{} {}", measure.name, measure.unit), format_number(measure.a),
                        format_number(measure.b), measure.ratio,
                        fmt::format("{:.3f} - {:.3f}", measure.interval.low, measure.interval.high),
                        verdict(measure));
  }
  text +=
      "\nIntervals are bootstrapped over the requests (throughputs: over pieces of time) of one "
      "run "
      "each.\nThey do not include differences between one run and the next.\n";
  return text;
}

}  // namespace protean::loadtest
