#include "measure/engine_bench.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "device/cpu/memory.h"
#include "device/cpu/team.h"
#include "host/cpu_share.h"
#include "host/machine.h"
#include "measure/ceilings.h"
#include "measure/step_rig.h"
#include "measure/stopwatch.h"
#include "replica/model_place.h"
#include "terminal/progress.h"

namespace protean {
namespace {

// A row of the table before it is measured.
struct Case {
  std::string phase;
  int batch = 0;
  StepSizes sizes;
};

// Returns the cases within the model's context. Longer prompts are shortened to it, with a warning.
Result<std::vector<Case>> cases_of(const EngineBenchOptions& options, const ModelSpec& spec) {
  if (options.context >= spec.max_context) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--context {} leaves no room to decode: this model reads {} tokens",
                      options.context, spec.max_context);
  }
  std::vector<Case> cases;
  for (const int wanted : options.prompts) {
    const int tokens = std::min(wanted, spec.max_context);
    if (tokens < wanted) {
      log::warning("this model reads {} tokens: a prompt of {} is measured with so many", tokens,
                   wanted);
    }
    const bool known = std::any_of(cases.begin(), cases.end(),
                                   [&](const Case& other) { return other.batch == tokens; });
    if (!known) {
      cases.push_back({"prefill", tokens, prefill_sizes(tokens)});
    }
  }
  for (const int batch : options.batches) {
    cases.push_back({"decode", batch, decode_sizes(batch, options.context)});
  }
  return cases;
}

Result<std::vector<Precision>> measured_precisions(const std::vector<std::string>& names) {
  std::vector<Precision> precisions;
  for (const std::string& name : names) {
    const auto precision = parse_precision(name);
    if (!precision.ok() || *precision == Precision::kF32) {
      return make_error(
          ErrorCode::kInvalidArgument,
          "--precisions {}: use bf16, s24, w8, w4, w3, w8a8, w8a7 or w4a8, with commas between",
          name);
    }
    if (std::find(precisions.begin(), precisions.end(), *precision) == precisions.end()) {
      precisions.push_back(*precision);
    }
  }
  return precisions;
}

Result<Ceilings> ceilings_of(const EngineBenchOptions& options, const CpuShare& cpus) {
  auto region = cpu::Region::map(std::int64_t{options.memory_mib} * kMiB);
  if (!region.ok()) {
    return region.error();
  }
  cpu::Team team(cpus.threads, cpus.where);
  const cpu::Seat seat = team.take_seat();
  return measure_ceilings(team, {region->data(), static_cast<std::size_t>(region->bytes())},
                          Stopwatch(options.cpu_time, cpus.threads), options.repeat);
}

// Measures all rows of the table, each `repeat` times. Rows take turns, so that a temporary load on
// the machine does not affect one of them alone.
class EngineBench {
 public:
  EngineBench(const EngineBenchOptions& options, StepRig& rig, std::vector<Case> cases,
              std::vector<Precision> precisions)
      : options_(options),
        rig_(rig),
        cases_(std::move(cases)),
        precisions_(std::move(precisions)),
        bar_(count_bar("measuring", "steps")),
        total_(std::ssize(cases_) * std::ssize(precisions_) * options.repeat) {
    for (const Precision precision : precisions_) {
      for (const Case& one : cases_) {
        rows_.push_back({.phase = one.phase,
                         .batch = one.batch,
                         .precision = precision,
                         .context = one.sizes.slices.front().context});
      }
    }
  }

  // If there is a peer, it runs after each turn.
  Result<std::vector<EngineRow>> measure(const LlamaBench* peer) {
    const int turns = peer != nullptr ? options_.repeat : 1;
    for (int turn = 0; turn < turns; ++turn) {
      for (std::size_t at = 0; at < precisions_.size(); ++at) {
        const Status measured = measure(at, options_.repeat / turns);
        if (!measured.ok()) {
          return measured.error();
        }
      }
      if (const Status measured = peer != nullptr ? measure_peer(*peer) : Status();
          !measured.ok()) {
        return measured.error();
      }
    }
    return std::move(rows_);
  }

 private:
  Status measure(std::size_t which, int repeat) {
    const Precision precision = precisions_[which];
    if (Status changed = rig_.become(precision); !changed.ok()) {
      return changed;
    }
    for (int round = -1; round < repeat; ++round) {  // the first round warms up
      for (std::size_t i = 0; i < cases_.size(); ++i) {
        EngineRow& row = rows_[which * cases_.size() + i];
        const auto seconds = rig_.time_s(cases_[i].sizes);
        if (!seconds.ok()) {
          return seconds.error();
        }
        if (round >= 0) {
          row.sample.times_s.push_back(*seconds);
          bar_(++done_, total_);
          continue;
        }
        row.demand = demand_of(work_of(rig_.plan_of(cases_[i].sizes), rig_.spec()), rig_.spec(),
                               rig_.form());
      }
    }
    return {};
  }

  // The peer can only compute one prompt, or decode one sequence.
  Status measure_peer(const LlamaBench& peer) {
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      const Case& one = cases_[i];
      const bool prefill = one.phase == "prefill";
      if (!prefill && one.batch != 1) {
        continue;
      }
      const auto run = prefill ? peer.prefill(one.batch) : peer.decode(options_.context);
      if (!run.ok()) {
        return run.error();
      }
      for (std::size_t which = 0; which < precisions_.size(); ++which) {
        EngineRow& row = rows_[which * cases_.size() + i];
        row.peer = row.peer ? row.peer : PeerSample{.model = run->model};
        row.peer->sample.times_s.push_back(one.batch / run->tokens_per_s);
      }
    }
    return {};
  }

  const EngineBenchOptions& options_;
  StepRig& rig_;
  const std::vector<Case> cases_;
  const std::vector<Precision> precisions_;
  const std::function<void(std::int64_t, std::int64_t)> bar_;
  const std::int64_t total_;
  std::int64_t done_ = 0;
  std::vector<EngineRow> rows_;  // by precision, then case
};

}  // namespace

Result<EngineTable> measure_engine(const EngineBenchOptions& options) {
  const auto precisions = measured_precisions(options.precisions);
  if (!precisions.ok()) {
    return precisions.error();
  }
  const auto cpus = choose_cpus(this_machine(), options.compute);
  if (!cpus.ok()) {
    return cpus.error();
  }
  EngineTable table{.model = model_name_at(options.model),
                    .threads = cpus->threads,
                    .cpu_time = options.cpu_time};
  const auto peer = LlamaBench::create(options.peer, table.threads);
  if (!peer.ok()) {
    return peer.error();
  }
  const auto checkpoint = open_checkpoint(options.model);
  if (!checkpoint.ok()) {
    return checkpoint.error();
  }
  auto cases = cases_of(options, (*checkpoint)->spec());
  if (!cases.ok()) {
    return cases.error();
  }
  const auto ceilings = ceilings_of(options, *cpus);
  if (!ceilings.ok()) {
    return ceilings.error();
  }
  table.ceilings = *ceilings;
  auto group = choose_group(options.group, options.compute, (*checkpoint)->spec(), this_machine());
  if (!group.ok()) {
    return group.error();
  }
  table.threads = 0;
  for (const GroupDevice& device : group->devices) {
    table.threads += device.cpus.threads;
  }
  StepRigOptions rig_options{.model = options.model,
                             .variant_cache = options.variant_cache,
                             .precisions = *precisions,
                             .cpus = *cpus,
                             .cpu_time = options.cpu_time};
  rig_options.group = *std::move(group);
  rig_options.cpus.threads = table.threads;  // as many as the stopwatch has
  for (const Case& one : *cases) {
    rig_options.steps.push_back(one.sizes);
  }
  const auto rig = StepRig::create(rig_options);
  if (!rig.ok()) {
    return rig.error();
  }
  EngineBench bench(options, **rig, *std::move(cases), *precisions);
  auto rows = bench.measure(peer->has_value() ? &**peer : nullptr);
  if (!rows.ok()) {
    return rows.error();
  }
  table.rows = *std::move(rows);
  return table;
}

}  // namespace protean
