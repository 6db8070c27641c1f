#include "replica/device_group.h"

#include <toml++/toml.h>
#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "base/units.h"

namespace protean {
namespace {

constexpr int kMostDevices = 1024;

std::optional<int> whole_number(std::string_view text) {
  int number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failed == std::errc() && end == text.data() + text.size() ? std::optional(number)
                                                                   : std::nullopt;
}

// A device as a file describes it.
struct DescribedDevice {
  std::string cpus;
  std::optional<int> threads;  // nothing: one for each CPU
  std::optional<std::int64_t> memory_bytes;
};

Result<DescribedDevice> read_device(const std::string& file, const toml::table& table,
                                    std::size_t number) {
  const auto wrong = [&](std::string_view key, std::string_view expected) {
    return make_error(ErrorCode::kInvalidArgument, "{}: device {}: {} must be {}", file, number,
                      key, expected);
  };
  DescribedDevice entry;
  for (const auto& [key, value] : table) {
    if (key == "cpus" && value.is_string()) {
      entry.cpus = value.as_string()->get();
    } else if (key == "threads" && value.is_integer()) {
      entry.threads =
          static_cast<int>(std::clamp<std::int64_t>(value.as_integer()->get(), -1, 4096));
    } else if (key == "memory" && value.is_string()) {
      const auto bytes = parse_bytes(value.as_string()->get());
      if (!bytes.ok()) {
        return make_error(bytes.error().code, "{}: device {}: memory: {}", file, number,
                          bytes.error().message);
      }
      entry.memory_bytes = *bytes;
    } else if (key == "cpus") {
      return wrong("cpus", "a list of CPUs such as \"0-7,16\"");
    } else if (key == "threads") {
      return wrong("threads", "a whole number");
    } else if (key == "memory") {
      return wrong("memory", "a size such as \"12GiB\"");
    } else {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: device {}: \"{}\" is unknown: a device has cpus, memory and threads",
                        file, number, key.str());
    }
  }
  if (entry.cpus.empty()) {
    return wrong("cpus", "a list of CPUs such as \"0-7,16\"");
  }
  if (entry.threads.value_or(1) < 1) {
    return wrong("threads", "at least 1");
  }
  return entry;
}

Result<toml::table> parse_file(const std::string& file) {
  try {
    return toml::parse_file(file);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;  // 0: the file cannot be opened
    return make_error(ErrorCode::kInvalidArgument, "--devices {}: {}{}", file, error.description(),
                      line > 0 ? fmt::format(", line {}", line) : "");
  }
}

Result<std::vector<DescribedDevice>> read_devices(const std::string& file) {
  const auto parsed = parse_file(file);
  if (!parsed.ok()) {
    return parsed.error();
  }
  const toml::array* const list = (*parsed)["device"].as_array();
  if (list == nullptr || list->empty() || !list->is_homogeneous(toml::node_type::table)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--devices {}: begin each device with a line [[device]], then cpus = \"0-7\" "
                      "and memory = \"12GiB\"",
                      file);
  }
  std::vector<DescribedDevice> entries;
  for (const toml::node& node : *list) {
    auto entry = read_device(file, *node.as_table(), entries.size());
    if (!entry.ok()) {
      return entry.error();
    }
    entries.push_back(*std::move(entry));
  }
  return entries;
}

Result<std::vector<GroupDevice>> devices_of_file(const std::string& file, const Machine& machine) {
  const auto entries = read_devices(file);
  if (!entries.ok()) {
    return entries.error();
  }
  std::vector<GroupDevice> devices;
  std::vector<int> used;
  std::int64_t memory_bytes = 0;
  for (const DescribedDevice& entry : *entries) {
    auto cpus = choose_cpus(machine, {.cpus = entry.cpus, .threads = entry.threads.value_or(0)});
    if (!cpus.ok()) {
      return make_error(cpus.error().code, "{}: device {}: {}", file, devices.size(),
                        cpus.error().message);
    }
    for (const int cpu : cpus->where.cpus) {
      if (std::find(used.begin(), used.end(), cpu) != used.end()) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{}: CPU {} belongs to two devices: give each its own", file, cpu);
      }
      used.push_back(cpu);
    }
    memory_bytes += entry.memory_bytes.value_or(0);
    devices.push_back({*std::move(cpus), entry.memory_bytes});
  }
  if (memory_bytes > machine.free_memory_bytes) {
    return make_error(ErrorCode::kExhausted, "{}: its devices take {}, and {} are free: give less",
                      file, format_bytes(memory_bytes), format_bytes(machine.free_memory_bytes));
  }
  return devices;
}

Result<std::vector<int>> stage_layers(const GroupOptions& options, const ModelSpec& spec) {
  std::vector<int> layers;
  std::string_view rest = options.stages;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const auto count = whole_number(rest.substr(0, comma));
    if (!count || *count < 1 || *count > spec.layers || comma + 1 == rest.size()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--stages {}: give the number of layers of each stage, such as 10,9,7,6",
                        options.stages);
    }
    layers.push_back(*count);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  const int sum = std::accumulate(layers.begin(), layers.end(), 0);
  if (sum != spec.layers) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--stages {}: these are {} layers, the model has {}: give as many",
                      options.stages, sum, spec.layers);
  }
  return layers;
}

// Returns the largest tensor degree up to `most` that the model can have.
int largest_degree(const ModelSpec& spec, int most) {
  int degree = 1;
  while (degree * 2 <= most && can_shard(spec, degree * 2)) {
    degree *= 2;
  }
  return degree;
}

Status check_degree(std::string_view flag, int degree, const ModelSpec& spec) {
  if (const int works = largest_degree(spec, degree); works != degree) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} {}: a degree is a power of two that divides the model's {} KV heads: use "
                      "{}",
                      flag, degree, spec.attention.kv_heads, works);
  }
  return {};
}

struct Degrees {
  int tensor = 1;
  int stages = 1;
};

// Fills in what the options leave open; `devices` is 0 if they leave that open too.
Degrees chosen_degrees(const GroupOptions& options, std::size_t stages, int devices,
                       const ModelSpec& spec) {
  const int pipeline = stages > 0 ? static_cast<int>(stages) : options.pipeline;
  if (options.tensor > 0 || pipeline > 0 || devices <= 1) {
    const int tensor = options.tensor > 0 ? options.tensor
                       : devices > 0      ? std::max(1, devices / std::max(1, pipeline))
                                          : 1;
    return {tensor, pipeline > 0 ? pipeline : std::max(1, devices / tensor)};
  }
  return largest_degree(spec, devices) == devices ? Degrees{devices, 1} : Degrees{1, devices};
}

// `devices` are those of one replica.
Status check_degrees(const Degrees& degrees, int devices, const GroupOptions& options,
                     const ModelSpec& spec) {
  const bool chosen_number = options.devices.empty() || options.devices == "auto";
  const std::string named =
      chosen_number ? std::to_string(devices * options.replicas) : options.devices;
  const std::string tensor_flag =
      options.tensor > 0 ? "--tensor-parallel-size"
                         : fmt::format("--devices {} with {} stages is TP", named, degrees.stages);
  if (Status valid = check_degree(tensor_flag, degrees.tensor, spec); !valid.ok()) {
    return valid;
  }
  if (degrees.stages > spec.layers) {
    const bool chosen = options.pipeline == 0;  // because of the number of devices
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: the model has {} layers, and each stage needs one: use at most {}",
                      chosen ? fmt::format("--devices {} is {} stages", named, degrees.stages)
                             : fmt::format("--pipeline-parallel-size {}", degrees.stages),
                      spec.layers,
                      chosen ? spec.layers * degrees.tensor * options.replicas : spec.layers);
  }
  if (const int needed = degrees.tensor * degrees.stages; needed != devices) {
    const int replicas = options.replicas;
    return make_error(ErrorCode::kInvalidArgument,
                      "--devices {}: {}TP {} with {} stage{} takes {}: use --devices {}, or other "
                      "degrees",
                      named, replicas == 1 ? "" : fmt::format("{} replicas of ", replicas),
                      degrees.tensor, degrees.stages, degrees.stages == 1 ? "" : "s",
                      needed * replicas, needed * replicas);
  }
  return {};
}

// Adds devices to the group and divides the CPUs among them. Replicas of one device each that are
// more than the CPUs share them all.
Status add_devices(const Machine& machine, const ComputeOptions& compute, int devices,
                   bool may_share, DeviceGroup& group) {
  const auto all = choose_cpus(machine, compute);
  if (!all.ok()) {
    return all.error();
  }
  const auto cpus = static_cast<int>(all->where.cpus.size());
  if (may_share && cpus < devices) {
    CpuShare share = *all;
    share.threads = 1;
    share.where.pinned = false;
    group.devices.assign(static_cast<std::size_t>(devices), {share, std::nullopt});
    group.warnings.push_back(
        fmt::format("{} replicas share {} CPU{} and wait for each other: --data-parallel-size {} "
                    "would not",
                    devices, cpus, cpus == 1 ? "" : "s", cpus));
    return {};
  }
  auto shares = divide_cpus(machine, compute, devices);
  if (!shares.ok()) {
    return shares.error();
  }
  for (CpuShare& share : *shares) {
    group.devices.push_back({std::move(share), std::nullopt});
  }
  return {};
}

// The devices of the options; their number may be open, which is an empty result.
Result<std::vector<GroupDevice>> named_devices(const GroupOptions& options,
                                               const ComputeOptions& compute,
                                               const Machine& machine, int& count) {
  count = 0;
  if (options.devices == "auto") {
    return std::vector<GroupDevice>();
  }
  if (const auto number = whole_number(options.devices)) {
    if (*number < 1 || *number > kMostDevices) {
      return make_error(ErrorCode::kInvalidArgument, "--devices {}: use 1 to {}", options.devices,
                        kMostDevices);
    }
    count = *number;
    return std::vector<GroupDevice>();
  }
  if (!compute.cpus.empty() || compute.threads > 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--devices {} names the CPUs and threads of each device: remove --cpus and "
                      "--threads, or give a number of devices",
                      options.devices);
  }
  auto devices = devices_of_file(options.devices, machine);
  if (devices.ok()) {
    count = static_cast<int>(devices->size());
  }
  return devices;
}

// Gives the devices the memory that the options say.
Status give_memory(const GroupOptions& options, std::vector<GroupDevice>& devices) {
  if (!options.memory.empty() && options.memory.size() != devices.size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: it has the memory of {} devices, and the replicas take {}: change "
                      "--data-parallel-size, --tensor-parallel-size or --pipeline-parallel-size",
                      options.memory_file, options.memory.size(), devices.size());
  }
  for (std::size_t i = 0; i < options.memory.size(); ++i) {
    devices[i].memory_bytes = options.memory[i];
  }
  return {};
}

}  // namespace

Form divide(Form form, const DeviceGroup& group) {
  std::vector<DeviceId> devices;
  for (int device = 0; device < group.division.devices(); ++device) {
    devices.push_back(DeviceId{device});
  }
  form.shards = group.shards;
  form.attention_kept = group.keeps_attention ? group.shards / group.division.tensor : 0;
  return divide(std::move(form), group.division, devices);
}

std::vector<GroupOptions> divisions_to_try(const GroupOptions& options,
                                           const ComputeOptions& compute, const Machine& machine) {
  std::set<int> nodes;
  for (const CpuPlace& place : machine.topology.cpus) {
    nodes.insert(place.node);
  }
  const bool open = options.devices == "auto" && options.replicas + options.tensor == 0 &&
                    options.pipeline == 0 && options.stages.empty() && compute.cpus.empty() &&
                    compute.threads == 0;
  const auto count = static_cast<int>(nodes.size());
  if (!open || count < 2 || machine.cores < count) {
    return {options};
  }
  std::vector<GroupOptions> divisions;
  for (int devices = 1; devices <= count; ++devices) {  // of each replica
    if (count % devices == 0) {
      divisions.push_back(options);
      divisions.back().devices = std::to_string(count);
      divisions.back().replicas = count / devices;
      divisions.back().on_nodes = true;
    }
  }
  divisions.push_back(options);
  divisions.back().devices = "1";
  return divisions;
}

std::vector<std::int64_t> memory_of_devices(const DeviceGroup& group, const Machine& machine) {
  const auto count = std::ssize(group.devices);
  std::vector<std::int64_t> memory;
  for (const GroupDevice& device : group.devices) {
    const std::vector<int>& nodes = device.cpus.where.nodes;
    const auto on_node = group.on_nodes && nodes.size() == 1
                             ? free_bytes_of_node(machine, nodes.front())
                             : std::nullopt;
    const auto there =
        std::count_if(group.devices.begin(), group.devices.end(),
                      [&](const GroupDevice& other) { return other.cpus.where.nodes == nodes; });
    const std::int64_t part = on_node ? *on_node / there : machine.free_memory_bytes / count;
    memory.push_back(device.memory_bytes.value_or(part));
  }
  return memory;
}

Result<DeviceGroup> choose_group(const GroupOptions& asked, const ComputeOptions& compute,
                                 const ModelSpec& spec, const Machine& machine) {
  GroupOptions options = asked;
  options.replicas = std::max(1, asked.replicas);
  int count = 0;
  auto devices = named_devices(options, compute, machine, count);
  if (!devices.ok()) {
    return devices.error();
  }
  const int replicas = options.replicas;
  if (count % replicas != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--devices {}: {} devices do not divide among --data-parallel-size {}: use a "
                      "multiple of it, such as {}",
                      options.devices, count, replicas, ceil_div(count, replicas) * replicas);
  }
  count /= replicas;  // from here on those of one replica
  std::vector<int> stages;
  if (!options.stages.empty()) {
    auto layers = stage_layers(options, spec);
    if (!layers.ok()) {
      return layers.error();
    }
    stages = *std::move(layers);
    if (options.pipeline > 0 && options.pipeline != std::ssize(stages)) {
      return make_error(
          ErrorCode::kInvalidArgument,
          "--stages {} are {} stages, --pipeline-parallel-size is {}: remove one of them",
          options.stages, stages.size(), options.pipeline);
    }
  }
  const Degrees degrees = chosen_degrees(options, stages.size(), count, spec);
  count = count > 0 ? count : degrees.tensor * degrees.stages;
  if (const Status valid = check_degrees(degrees, count, options, spec); !valid.ok()) {
    return valid.error();
  }
  const int shards = options.most_tensor > 0 ? options.most_tensor : degrees.tensor;
  if (const Status valid = check_degree("--max-tensor-parallel-size", shards, spec); !valid.ok()) {
    return valid.error();
  }
  if (shards < degrees.tensor) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "--max-tensor-parallel-size {} is below the degree in use, {}: remove it or raise it",
        shards, degrees.tensor);
  }
  DeviceGroup group{.devices = *std::move(devices),
                    .division = even_division(spec.layers, degrees.tensor, degrees.stages),
                    .shards = shards,
                    .keeps_attention = options.keeps_attention,
                    .on_nodes = options.on_nodes};
  group.division.stage_layers = stages.empty() ? group.division.stage_layers : stages;
  if (group.devices.empty()) {
    Status added =
        add_devices(machine, compute, count * replicas, count == 1 && replicas > 1, group);
    if (added = added.ok() ? give_memory(options, group.devices) : added; !added.ok()) {
      return added.error();
    }
  }
  int threads = 0;
  for (const GroupDevice& device : group.devices) {
    threads += device.cpus.threads;
  }
  if (count * replicas > 1 && threads > machine.cores && group.warnings.empty()) {
    group.warnings.push_back(fmt::format(
        "{} devices compute with {} threads where {} may run at once: they wait for each other",
        count * replicas, threads, machine.cores));
  }
  return group;
}

}  // namespace protean
