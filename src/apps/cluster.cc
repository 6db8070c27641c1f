#include "apps/cluster.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/options.h"
#include "base/units.h"

namespace protean {
namespace {

constexpr int kMostSimulated = 1024;

Error wrong(const std::string& file, std::string_view key, std::string_view expected) {
  return make_error(ErrorCode::kInvalidArgument, "--cluster {}: {} must be {}", file, key,
                    expected);
}

// Returns the number, or -1 if `value` is not a finite number. TOML has inf and nan.
double finite_number(const toml::node& value) {
  const double number = value.value<double>().value_or(-1);
  return std::isfinite(number) ? number : -1;
}

// Reads a list of positive numbers, at most one for each degree.
std::optional<std::vector<double>> numbers_of(const toml::node& value) {
  const toml::array* const list = value.as_array();
  if (list == nullptr || list->empty() || list->size() > GroupCost::kDegrees) {
    return std::nullopt;
  }
  std::vector<double> numbers;
  for (const toml::node& node : *list) {
    numbers.push_back(node.value<double>().value_or(-1));
    if (!(numbers.back() > 0 && numbers.back() <= kMostTokens)) {
      return std::nullopt;
    }
  }
  return numbers;
}

// Reads the memory of all devices, or a list of the memory of each.
Status read_memory(const std::string& file, const toml::node& value, Cluster& cluster) {
  const auto bytes_of = [](const toml::node& node) {
    const auto bytes = parse_bytes(node.value<std::string>().value_or(""));
    return bytes.ok() ? *bytes : 0;
  };
  cluster.memory_bytes = bytes_of(value);
  if (const toml::array* const list = value.as_array(); list != nullptr && !list->empty()) {
    for (const toml::node& node : *list) {
      cluster.memory_each.push_back(bytes_of(node));
    }
    cluster.memory_bytes = std::ranges::min(cluster.memory_each);
  }
  return cluster.memory_bytes > 0
             ? Status()
             : wrong(file, "memory",
                     "a size such as \"80GiB\", or a list with that of each device");
}

// Checks the memory against the number of devices, which may come later in the file.
Status check_memory(const std::string& file, Cluster& cluster) {
  const std::vector<std::int64_t>& each = cluster.memory_each;
  if (each.empty()) {
    return {};
  }
  if (std::ssize(each) != cluster.devices) {
    return wrong(file, "memory",
                 fmt::format("one size, or one for each of {} devices", cluster.devices));
  }
  if (std::ranges::max(each) == cluster.memory_bytes) {
    cluster.memory_each.clear();
  } else if (cluster.sequence) {
    return wrong(file, "memory", "one size if devices divide tokens (sequence)");
  }
  return {};
}

Status read_key(const std::string& file, std::string_view key, const toml::node& value,
                Cluster& cluster) {
  const double number = finite_number(value);
  if (key == "devices") {
    cluster.devices = static_cast<int>(std::clamp(number, -1.0, 1e6));
    const bool legal = cluster.devices >= 1 && cluster.devices <= kMostSimulated;
    return legal ? Status() : wrong(file, key, "1 to 1024");
  }
  if (key == "memory") {
    return read_memory(file, value, cluster);
  }
  if (key == "link_us" || key == "link_bytes_per_us") {
    (key == "link_us" ? cluster.link.us : cluster.link.bytes_per_us) = number;
    return number > 0 ? Status() : wrong(file, key, "more than 0");
  }
  if (key == "link_devices") {
    cluster.devices_on_link = static_cast<int>(std::clamp(number, -1.0, 1e6));
    return cluster.devices_on_link >= 1 && cluster.devices_on_link <= kMostSimulated
               ? Status()
               : wrong(file, key, "1 to 1024");
  }
  if (key == "sequence") {
    cluster.sequence = value.value<bool>().value_or(false);
    return value.is_boolean() ? Status() : wrong(file, key, "true or false");
  }
  if (key == "swap_bytes_per_us") {
    cluster.swap_bytes_per_us = number;
    return number >= 0 ? Status() : wrong(file, key, "at least 0");
  }
  if (key == "slowdown" || key == "longest") {
    const auto numbers = numbers_of(value);
    if (!numbers) {
      return wrong(file, key, "a list of up to 4 numbers, for 1, 2, 4 and 8 devices");
    }
    if (key == "slowdown") {
      std::copy(numbers->begin(), numbers->end(), cluster.slowdown.begin());
    } else {
      cluster.longest_tokens.assign(numbers->begin(), numbers->end());
    }
    return {};
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "--cluster {}: \"{}\" is unknown: a cluster has profile, devices, memory, "
                    "link_us, link_bytes_per_us, link_devices, slowdown, longest, "
                    "swap_bytes_per_us and sequence",
                    file, key);
}

Cluster cluster_of(const DeviceProfile& profile) {
  return {.name = std::string(profile.name),
          .profile = profile,
          .memory_bytes = profile.memory_bytes,
          .link = profile.send};
}

Result<Cluster> read_cluster_file(const std::string& file) {
  try {
    const toml::table parsed = toml::parse_file(file);
    const auto name = parsed["profile"].value<std::string>();
    if (!name) {
      return wrong(file, "profile", "the name of a built-in profile, such as \"A100\"");
    }
    const auto profile = find_device_profile(*name);
    if (!profile.ok()) {
      return make_error(profile.error().code, "--cluster {}: {}", file, profile.error().message);
    }
    Cluster cluster = cluster_of(*profile);
    for (const auto& [key, value] : parsed) {
      if (key != "profile") {
        if (Status read = read_key(file, key.str(), value, cluster); !read.ok()) {
          return read.error();
        }
      }
    }
    cluster.name = fmt::format("{}x{}", cluster.devices, profile->name);
    const Status known = check_memory(file, cluster);
    return known.ok() ? Result<Cluster>(std::move(cluster)) : known.error();
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;  // 0: the file cannot be opened
    return make_error(ErrorCode::kInvalidArgument, "--cluster {}: {}{}", file, error.description(),
                      line > 0 ? fmt::format(", line {}", line) : "");
  }
}

}  // namespace

Result<Cluster> read_cluster(const std::string& text) {
  std::error_code unknown;
  if (std::filesystem::exists(text, unknown)) {
    return read_cluster_file(text);
  }
  const std::size_t times = text.find('x');
  int count = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool counted = times != text.npos && failed == std::errc() && end == text.data() + times;
  if (!counted || count < 1 || count > kMostSimulated) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--cluster {}: name a number of devices with a built-in profile, such as "
                      "8xH20, or a TOML file",
                      text);
  }
  const auto profile = find_device_profile(text.substr(times + 1));
  if (!profile.ok()) {
    return make_error(profile.error().code, "--cluster {}: {}", text, profile.error().message);
  }
  Cluster cluster = cluster_of(*profile);
  cluster.devices = count;
  cluster.name = fmt::format("{}x{}", count, profile->name);
  return cluster;
}

Machine machine_of(const Cluster& cluster) {
  const std::vector<std::int64_t>& each = cluster.memory_each;
  Machine machine{.topology = {},
                  .cores = cluster.devices,
                  .free_memory_bytes = each.empty() ? cluster.memory_bytes * cluster.devices
                                                    : std::reduce(each.begin(), each.end()),
                  .maps_pages = false};
  for (int device = 0; device < cluster.devices; ++device) {
    machine.topology.cpus.push_back({.cpu = device, .core = device});
  }
  return machine;
}

GroupCost group_cost(const Cluster& cluster, const ModelSpec& spec,
                     const std::vector<Precision>& layers, KvPrecision kv) {
  GroupCost cost = group_cost(cluster.profile, spec, layers, kv);
  if (cluster.sequence) {
    cost = sequence_cost(scaled(cost.shared[0], cluster.slowdown[0]), spec, kv, cluster.link);
  } else {
    cost.rows = cost.exchange = cluster.link;
    for (std::size_t power = 0; power < GroupCost::kDegrees; ++power) {
      cost.shared[power] = scaled(cost.shared[power], cluster.slowdown[power]);
    }
  }
  cost.devices_on_link = cluster.devices_on_link;
  return cost;
}

}  // namespace protean
