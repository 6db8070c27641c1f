#include <algorithm>
#include <bit>
#include <boost/json/serialize.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench_options.h"
#include "apps/bench_run.h"
#include "apps/cluster.h"
#include "apps/fleet_options.h"
#include "apps/morph_options.h"
#include "apps/options.h"
#include "apps/simulation_report.h"
#include "apps/version.h"
#include "base/units.h"
#include "cost/configuration_cost.h"
#include "cost/known_models.h"
#include "cost/memory.h"
#include "loadtest/report_json.h"
#include "loadtest/report_text.h"
#include "model/json_file.h"
#include "replica/model_files.h"
#include "replica/model_place.h"
#include "replica/one_replica.h"
#include "replica/replica.h"
#include "replica/step_costs.h"
#include "sim/simulation.h"
#include "terminal/output.h"

namespace protean {
namespace {

struct SimulateCommand {
  ModelOptions model;
  std::string like;
  std::string cluster;
  MorphOptions morph;
  FleetOptions fleet;
  loadtest::BenchOptions load;
  std::string profile;
  int max_queued = 1024;
  bool no_restore = false;
  bool as_json = false;
  bool no_records = false;
};

// A model, how it is served, and the devices that take its steps.
struct SimulatedModel {
  std::string name;
  ModelSpec spec;
  ReplicaOptions replica;
  MorphCost morph_cost;
  std::vector<int> longest_tokens;  // see Cluster
  bool sequence = false;            // see Cluster
  std::string note;                 // says where the costs come from
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

// Changes of form need one that may change, and so do groups.
bool may_morph(const SimulateCommand& command) {
  return command.morph.mode != "off" || forms_groups(command.fleet);
}

// Returns the pages that a device has more if it holds the components in its form whole.
std::int64_t pages_beyond_shards(const ModelSpec& spec, const Form& form, std::int64_t page_bytes) {
  Form whole = form;
  const auto widen = [&](ShardRun& run) { run = run.empty() ? run : ShardRun{0, form.shards}; };
  for (Holding& holding : whole.group) {
    widen(holding.embeddings);
    for (Holding::Layer& layer : holding.layers) {
      widen(layer.attention);
      widen(layer.mlp);
    }
  }
  return weight_pages(spec, whole, page_bytes) - weight_pages(spec, form, page_bytes);
}

// Sizes a replica whose devices divide tokens: each holds its layers' weights whole, so those that
// a shard would leave out become no KV. `replica` is sized without them.
Result<ReplicaOptions> size_for_sequence(const SimulateCommand& command, ModelOptions model,
                                         const ModelSpec& spec, const Cluster& cluster,
                                         const ReplicaOptions& replica) {
  const Sizing& sizing = replica.sizing;
  const std::int64_t page_bytes = sizing.budget.page_bytes;
  const std::int64_t kept = pages_beyond_shards(spec, sizing.form, page_bytes) * page_bytes;
  const auto asked = parse_bytes(model.device_memory);
  if (kept == 0 || !asked.ok()) {
    return replica;
  }
  const auto refused = [&](const std::string& why) {
    return make_error(ErrorCode::kExhausted,
                      "--cluster {}: with sequence, each device holds {} of weights in addition to "
                      "a shard, of {}: {}",
                      command.cluster, format_bytes(kept), format_bytes(*asked), why);
  };
  if (*asked <= kept) {
    return refused("give it more memory");
  }
  model.device_memory = fmt::format("{}", *asked - kept);
  auto sized = size_replica(model, may_morph(command), command.morph, spec, machine_of(cluster));
  if (!sized.ok()) {
    return refused("for the rest, " + sized.error().message);
  }
  return sized;
}

// Returns the model on devices with a built-in profile.
Result<SimulatedModel> on_cluster(const SimulateCommand& command, std::string name,
                                  const ModelSpec& spec) {
  const auto cluster = read_cluster(command.cluster);
  if (!cluster.ok()) {
    return cluster.error();
  }
  ModelOptions model = command.model;
  if (!cluster->memory_each.empty()) {
    model.group.memory = cluster->memory_each;
    model.group.memory_file = command.cluster;
  } else if (model.device_memory == "auto") {
    model.device_memory = fmt::format("{}", cluster->memory_bytes);
  }
  auto replica = size_replica(model, may_morph(command), command.morph, spec, machine_of(*cluster));
  if (!replica.ok()) {
    return replica.error();
  }
  if (cluster->sequence) {
    replica = size_for_sequence(command, model, spec, *cluster, *replica);
    if (!replica.ok()) {
      return replica.error();
    }
  }
  const Sizing& sizing = replica->sizing;
  if (std::ssize(sizing.devices) != cluster->devices) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--cluster {}: the replicas take {} of its {} devices: change "
                      "--data-parallel-size, --tensor-parallel-size or --pipeline-parallel-size",
                      command.cluster, sizing.devices.size(), cluster->devices);
  }
  replica->cost =
      group_cost(*cluster, spec, fingerprint_options(*replica).layers, sizing.form.kv.precision);
  const double link_bytes_per_us = cluster->link.bytes_per_us;
  return SimulatedModel{.name = std::move(name),
                        .spec = spec,
                        .replica = *std::move(replica),
                        .morph_cost = {.copy_bytes_per_us = link_bytes_per_us,
                                       .fetch_bytes_per_us = link_bytes_per_us,
                                       .swap_bytes_per_us = cluster->swap_bytes_per_us},
                        .longest_tokens = cluster->longest_tokens,
                        .sequence = cluster->sequence,
                        .note = fmt::format("simulated on {}: a roofline of {}", cluster->name,
                                            cluster->profile.source)};
}

// Returns the model on this machine, or on the one whose costs --profile has.
Result<SimulatedModel> on_this_machine(const SimulateCommand& command, const ModelFiles& files) {
  auto replica =
      choose_replica(command.model, may_morph(command), command.morph, files, this_machine());
  if (!replica.ok()) {
    return replica.error();
  }
  const auto cost = step_cost_of(command, files, *replica);
  if (!cost.ok()) {
    return cost.error();
  }
  const std::string origin = command.profile.empty() ? "the profile" : command.profile;
  if (const Status known = check_known(cost->cost, *replica, origin); !known.ok()) {
    return known.error();
  }
  const ModelSpec& spec = files.checkpoint->spec();
  const WorkerOptions defaults;
  const int threads = replica->sizing.cpus.front().threads;
  MorphCost morph_cost{.share_during_steps = std::min(1.0, defaults.background_share * threads),
                       .step_slowdown = defaults.background_share};
  if (cost->cost.copy_bytes_per_us > 0) {
    morph_cost.copy_bytes_per_us = morph_cost.fetch_bytes_per_us = cost->cost.copy_bytes_per_us;
  }
  replica->cost =
      group_cost(cost->cost, spec, fingerprint_options(*replica).layers, kAssumedTransfer);
  const bool divides = std::ssize(replica->sizing.devices) > 1 &&
                       !knows_sums(cost->cost, fingerprint_options(*replica).layers);
  return SimulatedModel{
      .name = files.name,
      .spec = spec,
      .replica = *std::move(replica),
      .morph_cost = morph_cost,
      .longest_tokens = {},
      .note = fmt::format(
          "simulated with the cost of steps on {}, {} threads, from {}{}", cost->cpu, cost->threads,
          cost->origin == StepCostOrigin::kFingerprint ? "a fingerprint" : "the whole model",
          divides ? ", sums among devices not measured" : "")};
}

Result<SimulatedModel> simulated_model(SimulateCommand& command) {
  if (const Status grouped = check_groups(command.fleet, command.model.group); !grouped.ok()) {
    return grouped.error();
  }
  if (command.like.empty() == command.model.model.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "protean simulate needs MODEL or --like NAME, and not both");
  }
  if (!command.like.empty()) {
    const auto known = find_known_model(command.like, true);
    if (!known.ok()) {
      return known.error();
    }
    if (command.cluster.empty()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--like {} has no weights to run here: name devices with a built-in "
                        "profile, such as --cluster 8xH20, or give MODEL",
                        command.like);
    }
    return on_cluster(command, command.like, known->spec);
  }
  if (Status located = locate_model(command.model); !located.ok()) {
    return located.error();
  }
  const auto files = open_model_files(command.model);
  if (!files.ok()) {
    return files.error();
  }
  return command.cluster.empty() ? on_this_machine(command, *files)
                                 : on_cluster(command, files->name, files->checkpoint->spec());
}

// Limits requests to what as many devices as the form has may serve.
void limit_length(const SimulatedModel& model, const Form& form, EngineConfig& engine) {
  const std::size_t power = std::bit_width(form.group.size()) - 1;
  if (!model.longest_tokens.empty()) {
    const std::size_t at = std::min(power, model.longest_tokens.size() - 1);
    engine.scheduler.max_model_len =
        std::min(engine.scheduler.max_model_len, model.longest_tokens[at]);
  }
}

// Returns the pages of weights that stay on each device of a group. With sequence parallelism they
// are those that its devices would drop.
std::int64_t pages_kept(const SimulatedModel& model, const Form& wide) {
  const Sizing& sizing = model.replica.sizing;
  const std::int64_t page_bytes = sizing.budget.page_bytes;
  return model.sequence ? weight_pages(model.spec, sizing.form, page_bytes) -
                              weight_pages(model.spec, wide, page_bytes)
                        : 0;
}

// Returns the configuration of the engine of a group.
EngineConfig engine_of(const SimulatedModel& model, const Form& wide) {
  ReplicaOptions replica = model.replica;
  replica.morph->bounds.budget.reserve += pages_kept(model, wide);
  EngineConfig engine = wide_engine_config(replica, model.spec, wide);
  limit_length(model, wide, engine);
  return engine;
}

// Gives each replica the form and the engine of its own memory, if replicas have unequal memory.
void add_unequal_replicas(const SimulatedModel& model, SimulationConfig& config) {
  const Sizing& sizing = model.replica.sizing;
  if (sizing.unequal.empty()) {
    return;
  }
  config.each.clear();
  for (std::int32_t replica = 0; replica < sizing.replicas(); ++replica) {
    const ReplicaOptions own = options_of(model.replica, ReplicaId{replica});
    EngineConfig engine = engine_config(own, model.spec);
    limit_length(model, own.sizing.form, engine);
    config.each.push_back({{model.spec, sizing.budget, own.sizing.form}, std::move(engine)});
  }
}

SimulationConfig simulation_of(const SimulateCommand& command, const SimulatedModel& model) {
  const ReplicaOptions& replica = model.replica;
  const Form& form = replica.sizing.form;
  SimulationConfig config{
      .engine = engine_config(replica, model.spec),
      .replicas = replica.sizing.replicas(),
      .dispatch = {replica.router, replica.migrate},
      .step_cost = replica.cost.on(stages_of(form).front().devices.size()),
      .seed = command.load.load.workload.seed,
      .max_concurrency = command.load.load.max_concurrency,
      .max_outstanding =
          command.model.max_num_seqs * replica.sizing.replicas() + command.max_queued,
      .keep_token_times = true};
  config.block_copy_us = static_cast<double>(kv_block_bytes(model.spec, form.kv)) /
                         model.morph_cost.fetch_bytes_per_us;
  config.morph_cost = model.morph_cost;
  config.group_cost = replica.cost;
  config.each.push_back({.devices = {model.spec, replica.sizing.budget, form}});
  limit_length(model, form, config.engine);
  add_unequal_replicas(model, config);
  config.groups = group_config(replica, model.spec);
  if (config.groups) {
    config.groups->restores = !command.no_restore;
  }
  if (config.groups && !model.longest_tokens.empty()) {
    const std::size_t power = std::bit_width(form.group.size()) - 1;
    const auto first = std::min(power, model.longest_tokens.size() - 1);
    config.groups->longest_tokens.assign(
        model.longest_tokens.begin() + static_cast<std::ptrdiff_t>(first),
        model.longest_tokens.end());
  }
  if (config.groups) {
    config.groups->wide_engine = [model](const Form& wide) { return engine_of(model, wide); };
    config.groups->wide_reserve = [model](const Form& wide) { return pages_kept(model, wide); };
  }
  return config;
}

int run_simulate(SimulateCommand& command) {
  prepare_for_groups(command.fleet, command.model);
  auto bench = loadtest::plan_arrivals(command.load);
  if (!bench.ok()) {
    return exit_with(bench.error());
  }
  auto model = simulated_model(command);
  if (!model.ok()) {
    return exit_with(model.error());
  }
  ReplicaOptions& replica = model->replica;
  set_policies(command.fleet, replica);
  const Form& form = replica.sizing.form;
  SimulationConfig config = simulation_of(command, *model);
  const std::vector<TraceRequest> requests =
      requests_of(*bench->workload, config.prefix_block_tokens);
  const SimulationReport report = simulate(config, requests);
  const loadtest::RunResult run = run_of(report, requests);
  loadtest::RunDescription& about = bench->description;
  about.server = "simulated";
  about.endpoint = "simulated";
  about.model = model->name;
  about.date = "simulated";
  about.notes.push_back(model->note);
  if (replica.sizing.unequal.empty()) {
    about.notes.push_back(fmt::format("each replica begins with {}", to_string(form)));
  }
  for (std::size_t i = 0; i < replica.sizing.unequal.size(); ++i) {
    about.notes.push_back(
        fmt::format("replica {} begins with {}", i, to_string(config.each[i].devices.form)));
  }
  if (const std::int64_t moved = report.final.adopted_with_kv_total; moved > 0) {
    about.notes.push_back(fmt::format("{} requests moved to another replica with their KV", moved));
  }
  const loadtest::OutputOptions& output = command.load.output;
  const loadtest::Summary summary = summarise_run(run, output.slo, output.percentiles);
  const auto text_of = [](const boost::json::object& object) {
    return object.empty() ? std::string() : boost::json::serialize(object);
  };
  const std::string forms = text_of(form_object(report, run.elapsed_ns));
  const std::string groups = text_of(groups_object(report));
  if (command.as_json) {
    print_text(json_of(about, summary, run,
                       {.requests = !command.no_records, .form = forms, .groups = groups}));
    return 0;
  }
  print_text(table_of(about, summary));
  if (!forms.empty()) {
    print_text(fmt::format("form: {}\n", forms));
  }
  if (!groups.empty()) {
    print_text(fmt::format("groups: {}\n", groups));
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
  app->get_option("MODEL")->required(false);
  add_fleet_options(*app, command->fleet);
  add_morph_options(*app, command->morph);
  loadtest::add_arrival_options(*app, command->load);
  app->option_defaults()->group("Simulation");
  app->add_option(
         "--cluster", command->cluster,
         "Devices to simulate: NxNAME of a built-in profile (A100, H100, A40, A6000, "
         "H20), or a TOML file with profile, devices, memory (a list: of each device), link_us, "
         "link_bytes_per_us, link_devices (so many devices receive over one link), slowdown, "
         "longest, sequence (true: devices divide tokens and hold all weights) and "
         "swap_bytes_per_us: the rate at which KV of preempted requests "
         "comes back from host memory instead of being computed again (default devices of "
         "this machine)")
      ->type_name("NxNAME|FILE");
  app->add_option("--like", command->like,
                  "Simulate a published model's sizes, without its weights, on a cluster")
      ->type_name("NAME");
  app->add_option("--profile", command->profile,
                  "Take the cost of steps from this output of protean profile --steps --json "
                  "(default what a server on this machine would use)")
      ->type_name("FILE")
      ->check(existing_path());
  app->add_option("--max-num-queued-reqs", command->max_queued,
                  "Most requests that wait in addition to --max-num-seqs; more are refused")
      ->check(whole_number(0, 1 << 20))
      ->capture_default_str();
  app->add_flag("--no-restore", command->no_restore,
                "Keep groups of --drop paper after the burst, to compare");
  app->option_defaults()->group("Output");
  loadtest::add_goodput_option(*app, command->load.output);
  app->add_flag("--json", command->as_json, "Print one JSON object");
  app->add_flag("--no-records", command->no_records, "Leave single requests out of it");
  app->footer(
      "Example: protean simulate MODEL --trace azure.csv --device-memory 2750MiB --morph balanced\n"
      "         protean simulate --like qwen2.5-32b --cluster 8xH20 --data-parallel-size 8 \\\n"
      "             --max-tensor-parallel-size 4 --scale paper --request-rate 2\n"
      "The same flags and the same profile give the same output, byte for byte.");
  app->callback([command, &exit_code] { exit_code = run_simulate(*command); });
}

}  // namespace protean
