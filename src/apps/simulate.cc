#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench_options.h"
#include "apps/bench_plan.h"
#include "apps/morph_options.h"
#include "apps/options.h"
#include "apps/version.h"
#include "loadtest/report_json.h"
#include "loadtest/report_text.h"
#include "model/json_file.h"
#include "replica/model_files.h"
#include "replica/model_place.h"
#include "replica/replica.h"
#include "replica/step_costs.h"
#include "sim/simulation.h"
#include "terminal/output.h"

namespace protean {
namespace {

namespace json = boost::json;

struct SimulateCommand {
  ModelOptions model;
  MorphOptions morph;
  loadtest::BenchOptions load;
  std::string profile;
  int max_queued = 1024;
  bool as_json = false;
  bool no_records = false;
};

// Returns the costs in the file of --profile, else those that a server would use.
Result<MachineStepCost> step_cost_of(const SimulateCommand& command, const ModelFiles& files,
                                     const ReplicaOptions& replica) {
  if (!command.profile.empty()) {
    const auto object = read_json_file(command.profile);
    return object.ok() ? parse_step_cost(*object, command.profile) : object.error();
  }
  const StepCostSource source{
      .model = command.model.model, .directory = command.morph.variant_cache, .version = kVersion};
  const FingerprintOptions wanted = fingerprint_options(replica);
  if (auto kept = kept_step_cost(source, files.checkpoint->spec(), wanted); kept.ok()) {
    return kept;
  }
  std::string remark;
  const auto found = learn_step_cost(source, *files.checkpoint, wanted, &remark);
  if (!found.ok()) {
    return found.error();
  }
  return MachineStepCost{.cpu = processor_name(),
                         .threads = wanted.cpus.threads,
                         .origin = StepCostOrigin::kFingerprint,
                         .cost = found->cost};
}

// Fails and names a precision of the replica that the cost model does not know.
Status check_known(const StepCost& cost, const ReplicaOptions& replica, const std::string& name) {
  for (const Precision precision : fingerprint_options(replica).layers) {
    if (!cost.of(precision).is_known()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{} does not tell what layers at {} cost: profile this precision too, or "
                        "choose others with --dtype and --morph-precisions",
                        name, to_string(precision));
    }
  }
  return {};
}

std::vector<TraceRequest> requests_of(loadtest::Workload& workload, double& block_tokens) {
  std::vector<TraceRequest> requests;
  while (const auto planned = workload.next()) {
    requests.push_back(
        {.at_ns = planned->at_ns,
         .input_tokens = planned->input_tokens,
         .output_tokens = planned->output_tokens,
         .prefix_blocks = {planned->prefix_blocks.begin(), planned->prefix_blocks.end()}});
    block_tokens = std::max(block_tokens, planned->block_tokens);
  }
  return requests;
}

SimulationConfig simulation_of(const SimulateCommand& command, const ReplicaOptions& replica,
                               const ModelSpec& spec, const StepCost& cost) {
  const WorkerOptions defaults;
  const int threads = replica.sizing.cpus.front().threads;
  SimulationConfig config{.engine = engine_config(replica, spec),
                          .replicas = replica.model.group.replicas,
                          .router = replica.router,
                          .step_cost = cost,
                          .seed = command.load.load.workload.seed,
                          .max_concurrency = command.load.load.max_concurrency,
                          .max_outstanding = command.model.max_num_seqs + command.max_queued,
                          .keep_token_times = true};
  config.morph_cost = {.share_during_steps = std::min(1.0, defaults.background_share * threads),
                       .step_slowdown = defaults.background_share};
  if (cost.copy_bytes_per_us > 0) {
    config.morph_cost.copy_bytes_per_us = cost.copy_bytes_per_us;
  }
  return config;
}

loadtest::RequestRecord planned_record(std::uint64_t request, const TraceRequest& traced) {
  return {.index = static_cast<std::int64_t>(request) - 1,
          .planned_input_tokens = traced.input_tokens,
          .planned_output_tokens = traced.output_tokens,
          .input_tokens = traced.input_tokens};
}

loadtest::RequestRecord record_of(const FinishedRequest& done, const TraceRequest& traced) {
  loadtest::RequestRecord record = planned_record(done.request, traced);
  const bool completed = done.reason == FinishReason::kStop || done.reason == FinishReason::kLength;
  record.due_ns = record.sent_ns = record.connected_ns = done.times.arrived_ns;
  record.first_token_ns = done.times.first_token_ns;
  record.last_token_ns = done.tokens_ns.empty() ? -1 : done.tokens_ns.back();
  record.end_ns = done.times.finished_ns;
  record.input_tokens = done.usage.prompt_tokens;
  record.output_tokens = done.usage.output_tokens;
  record.cached_tokens = done.usage.cached_tokens;
  record.chunks = done.usage.output_tokens;
  record.has_usage = true;
  record.outcome = completed ? loadtest::Outcome::kCompleted : loadtest::Outcome::kErrorEvent;
  record.http_status = 200;
  record.finish_reason = completed ? "length" : "error";
  for (std::size_t i = 1; i < done.tokens_ns.size(); ++i) {
    record.itl_ms.push_back(
        static_cast<float>(static_cast<double>(done.tokens_ns[i] - done.tokens_ns[i - 1]) /
                           static_cast<double>(kNsPerMs)));
  }
  return record;
}

loadtest::RunResult run_of(const SimulationReport& report,
                           const std::vector<TraceRequest>& requests) {
  loadtest::RunResult run;
  const auto traced = [&](std::uint64_t request) -> const TraceRequest& {
    return requests.at(static_cast<std::size_t>(request) - 1);
  };
  for (const FinishedRequest& done : report.finished) {
    run.records.push_back(record_of(done, traced(done.request)));
  }
  for (const RefusedRequest& refused : report.refusals) {
    loadtest::RequestRecord record = planned_record(refused.request, traced(refused.request));
    record.due_ns = record.sent_ns = record.connected_ns = record.end_ns = refused.at_ns;
    record.outcome = loadtest::Outcome::kHttpStatus;
    record.http_status = 429;
    record.error = "the server has too many requests, or would be too late";
    run.records.push_back(std::move(record));
  }
  std::sort(run.records.begin(), run.records.end(),
            [](const auto& a, const auto& b) { return a.index < b.index; });
  for (const loadtest::RequestRecord& record : run.records) {
    run.elapsed_ns = std::max(run.elapsed_ns, record.end_ns);
  }
  return run;
}

// What became of the form: swaps, and where tokens were drawn.
json::object form_object(const SimulationReport& report, TimeNs elapsed_ns) {
  if (report.forms.empty()) {
    return {};
  }
  const FormStatus& last = *report.forms.back().status;
  const std::int64_t swaps = last.swaps_down_total + last.swaps_up_total;
  const double minutes = loadtest::seconds(elapsed_ns) / 60;
  json::object tokens;
  for (const TokensAt& at : last.output_tokens) {
    tokens[at.precision] = at.tokens;
  }
  return {{"at_end", to_string(last.form)},
          {"swaps_down", last.swaps_down_total},
          {"swaps_up", last.swaps_up_total},
          {"swaps_per_minute", minutes > 0 ? static_cast<double>(swaps) / minutes : 0.0},
          {"failures", last.failures_total},
          {"output_tokens", std::move(tokens)}};
}

int run_simulate(SimulateCommand& command) {
  auto plan = loadtest::plan_arrivals(command.load);
  if (!plan.ok()) {
    return exit_with(plan.error());
  }
  if (Status located = locate_model(command.model); !located.ok()) {
    return exit_with(located.error());
  }
  const auto files = open_model_files(command.model);
  if (!files.ok()) {
    return exit_with(files.error());
  }
  auto replica = choose_replica(command.model, command.morph.mode != "off", command.morph, *files,
                                this_machine());
  if (!replica.ok()) {
    return exit_with(replica.error());
  }
  if (replica->sizing.form.group.size() > 1) {
    return exit_with({ErrorCode::kUnsupported,
                      "a simulated replica has one device: leave out the flags that divide a model "
                      "among several"});
  }
  const auto cost = step_cost_of(command, *files, *replica);
  if (!cost.ok()) {
    return exit_with(cost.error());
  }
  const std::string origin = command.profile.empty() ? "the profile" : command.profile;
  if (const Status known = check_known(cost->cost, *replica, origin); !known.ok()) {
    return exit_with(known.error());
  }
  replica->step_cost = cost->cost;
  SimulationConfig config = simulation_of(command, *replica, files->checkpoint->spec(), cost->cost);
  const std::vector<TraceRequest> requests =
      requests_of(*plan->workload, config.prefix_block_tokens);
  const SimulationReport report = simulate(config, requests);
  const loadtest::RunResult run = run_of(report, requests);
  loadtest::RunDescription& about = plan->description;
  about.server = "simulated";
  about.endpoint = "simulated";
  about.model = files->name;
  about.date = "simulated";
  about.notes.push_back(fmt::format(
      "simulated with the cost of steps on {}, {} threads, from {}", cost->cpu, cost->threads,
      cost->origin == StepCostOrigin::kFingerprint ? "a fingerprint" : "the whole model"));
  const loadtest::OutputOptions& output = command.load.output;
  const loadtest::Summary summary = summarise_run(run, output.slo, output.percentiles);
  const json::object form = form_object(report, run.elapsed_ns);
  if (command.as_json) {
    print_text(json_of(
        about, summary, run,
        {.requests = !command.no_records, .form = form.empty() ? "" : json::serialize(form)}));
    return 0;
  }
  print_text(table_of(about, summary));
  if (!form.empty()) {
    print_text(fmt::format("form: {}\n", json::serialize(form)));
  }
  return 0;
}

}  // namespace

void add_simulate(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand(
      "simulate",
      "Serve a load in virtual time with the real engine and policy, and report "
      "latencies as bench serve does");
  auto command = std::make_shared<SimulateCommand>();
  add_model_options(*app, command->model);
  add_morph_options(*app, command->morph);
  loadtest::add_arrival_options(*app, command->load);
  app->option_defaults()->group("Simulation");
  app->add_option("--profile", command->profile,
                  "Take the cost of steps from this output of protean profile --steps --json "
                  "(default what a server on this machine would use)")
      ->type_name("FILE")
      ->check(existing_path());
  app->add_option("--max-num-queued-reqs", command->max_queued,
                  "Most requests that wait in addition to --max-num-seqs; more are refused")
      ->check(whole_number(0, 1 << 20))
      ->capture_default_str();
  app->option_defaults()->group("Output");
  loadtest::add_goodput_option(*app, command->load.output);
  app->add_flag("--json", command->as_json, "Print one JSON object");
  app->add_flag("--no-records", command->no_records, "Leave single requests out of it");
  app->footer(
      "Example: protean simulate MODEL --trace azure.csv --device-memory 2750MiB --morph balanced\n"
      "The same flags and the same profile give the same output, byte for byte.");
  app->callback([command, &exit_code] { exit_code = run_simulate(*command); });
}

}  // namespace protean
