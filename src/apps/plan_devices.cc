#include "apps/plan_devices.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "replica/device_group.h"
#include "replica/step_costs.h"

namespace protean {
namespace {

constexpr int kMostDevices = 1024;
constexpr double kMostPrice = 1e9;  // of a device-hour

std::optional<int> device_count(std::string_view text) {
  int count = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool whole = failed == std::errc() && end == text.data() + text.size();
  return whole && count >= 1 && count <= kMostDevices ? std::optional(count) : std::nullopt;
}

PlannedDevice with_profile(const DeviceProfile& profile) {
  return {
      .profile = profile, .memory_bytes = profile.memory_bytes, .free_bytes = profile.memory_bytes};
}

// Returns true if a text consists of digits: a number that may be too large.
bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// Reads "8xA6000" or "A6000".
Result<PlannedDevices> devices_of_a_kind(const std::string& text) {
  const std::size_t times = text.find('x');
  const bool counted = times != text.npos && is_number(std::string_view(text).substr(0, times));
  const std::string_view number = std::string_view(text).substr(0, counted ? times : text.size());
  const auto count = counted ? device_count(number) : std::optional(1);
  if (!count || is_number(text)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--devices {}: {} is no number of devices: use 1 to {}", text, number,
                      kMostDevices);
  }
  const std::string name = counted ? text.substr(times + 1) : text;
  const auto profile = find_device_profile(name);
  if (!profile.ok() && text.find_first_of("./") != text.npos) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--devices {}: there is no such file: name a TOML file of [[device]], a "
                      "number of devices, or devices such as 8xA6000",
                      text);
  }
  if (!profile.ok()) {
    return make_error(profile.error().code, "--devices {}: {}", text, profile.error().message);
  }
  return PlannedDevices{
      .devices = std::vector(static_cast<std::size_t>(*count), with_profile(*profile)),
      .name = fmt::format("{}x{}", *count, profile->name)};
}

Error wrong(const std::string& file, std::size_t number, std::string_view key,
            std::string_view expected) {
  return make_error(ErrorCode::kInvalidArgument, "--devices {}: device {}: {} must be {}", file,
                    number, key, expected);
}

// Reads a size of one [[device]] into `bytes`.
Status read_size(const toml::node& value, std::int64_t& bytes) {
  const auto parsed =
      value.is_string() ? parse_bytes(value.as_string()->get())
                        : Result<std::int64_t>(make_error(ErrorCode::kInvalidArgument, "no size"));
  if (!parsed.ok()) {
    return parsed.error();
  }
  bytes = *parsed;
  return {};
}

// Reads one [[device]] with a profile and adds it as often as it says.
Status add_described(const std::string& file, const toml::table& table,
                     std::vector<PlannedDevice>& devices) {
  const std::size_t number = devices.size();
  const auto name = table["profile"].value<std::string>();
  if (!name) {
    return wrong(file, number, "profile", "the name of a built-in profile, such as \"A6000\"");
  }
  const auto profile = find_device_profile(*name);
  if (!profile.ok()) {
    return make_error(profile.error().code, "--devices {}: {}", file, profile.error().message);
  }
  PlannedDevice device = with_profile(*profile);
  int count = 1;
  std::optional<std::int64_t> free_bytes;
  for (const auto& [key, value] : table) {
    if (key == "memory" || key == "free") {
      std::int64_t bytes = 0;
      if (!read_size(value, bytes).ok()) {
        return wrong(file, number, key.str(), "a size such as \"40GiB\"");
      }
      key == "memory" ? device.memory_bytes = bytes : free_bytes.emplace(bytes);
    } else if (key == "load" || key == "price") {
      const double number_is = value.value<double>().value_or(-1);
      if (!(number_is >= 0) || number_is > (key == "load" ? 1 : kMostPrice)) {
        return wrong(file, number, key.str(), key == "load" ? "from 0 to 1" : "from 0 to 1e9");
      }
      (key == "load" ? device.load : device.price_per_hour) = number_is;
    } else if (key == "count") {
      count = static_cast<int>(
          std::clamp<std::int64_t>(value.value<std::int64_t>().value_or(0), 0, kMostDevices + 1));
    } else if (key != "profile") {
      return make_error(ErrorCode::kInvalidArgument,
                        "--devices {}: device {}: \"{}\" is unknown: a device has profile, count, "
                        "memory, free, load and price",
                        file, number, key.str());
    }
  }
  if (count < 1 || std::ssize(devices) + count > kMostDevices) {
    return wrong(file, number, "count", "at least 1, and 1024 in all");
  }
  device.free_bytes = free_bytes.value_or(device.memory_bytes);
  if (device.free_bytes > device.memory_bytes) {
    return wrong(file, number, "free", "at most its memory, " + format_bytes(device.memory_bytes));
  }
  devices.insert(devices.end(), static_cast<std::size_t>(count), device);
  return {};
}

// Returns the described devices of a file; an empty list if they are described by their CPUs.
Result<std::vector<PlannedDevice>> devices_with_profiles(const std::string& file) {
  std::vector<PlannedDevice> devices;
  try {
    const toml::table parsed = toml::parse_file(file);
    const toml::array* const list = parsed["device"].as_array();
    if (list == nullptr || list->empty() || !list->is_homogeneous(toml::node_type::table)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--devices {}: begin each device with a line [[device]], then profile = "
                        "\"A6000\", or cpus = \"0-7\"",
                        file);
    }
    if (!list->front().as_table()->contains("profile")) {
      return devices;
    }
    for (const toml::node& node : *list) {
      if (Status added = add_described(file, *node.as_table(), devices); !added.ok()) {
        return added.error();
      }
    }
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;  // 0: the file cannot be opened
    return make_error(ErrorCode::kInvalidArgument, "--devices {}: {}{}", file, error.description(),
                      line > 0 ? fmt::format(", line {}", line) : "");
  }
  return devices;
}

// The devices that `protean serve --devices TEXT` would compute on.
Result<PlannedDevices> devices_here(const std::string& text, const std::string& cpus,
                                    const ModelSpec& spec, const Machine& machine) {
  // PP 1 to the number of devices is asked of the plan; the group only names CPUs.
  GroupOptions options{.devices = text};
  if (const auto count = device_count(text)) {
    options.replicas = *count;
  }
  const auto group = choose_group(options, {.cpus = cpus}, spec, machine);
  if (!group.ok()) {
    return group.error();
  }
  PlannedDevices found{.name = processor_name()};
  if (!group->warnings.empty()) {
    found.warning = fmt::format(
        "--devices {}: there are not as many CPUs, so devices wait for each other; estimates are "
        "for devices that do not",
        text);
  }
  const std::vector<std::int64_t> memory = memory_of_devices(*group, machine);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    found.devices.push_back(
        {.cpus = group->devices[i].cpus, .memory_bytes = memory[i], .free_bytes = memory[i]});
  }
  return found;
}

}  // namespace

Result<PlannedDevices> read_planned_devices(const std::string& text, const std::string& cpus,
                                            const ModelSpec& spec, const Machine& machine) {
  std::error_code unknown;
  if (std::filesystem::exists(text, unknown)) {
    auto described = devices_with_profiles(text);
    if (!described.ok()) {
      return described.error();
    }
    if (!described->empty()) {
      return PlannedDevices{.devices = *std::move(described), .name = text};
    }
    return devices_here(text, cpus, spec, machine);
  }
  if (device_count(text)) {
    return devices_here(text, cpus, spec, machine);
  }
  return devices_of_a_kind(text);
}

}  // namespace protean
