#include "host/topology.h"

#include <fmt/format.h>

#include "base/units.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

namespace protean {
namespace {

namespace fs = std::filesystem;

constexpr int kHighestCpu = (1 << 16) - 1;

std::optional<int> parse_cpu(std::string_view text) {
  int cpu = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), cpu);
  const bool whole = failed == std::errc() && end == text.data() + text.size();
  return whole && cpu >= 0 && cpu <= kHighestCpu ? std::optional(cpu) : std::nullopt;
}

// Returns the first and the last number of "4" or "0-3".
std::optional<std::pair<int, int>> parse_run(std::string_view text) {
  const std::size_t dash = text.find('-');
  const auto first = parse_cpu(text.substr(0, dash));
  const auto last = dash == text.npos ? first : parse_cpu(text.substr(dash + 1));
  return first && last && *first <= *last ? std::optional(std::pair(*first, *last)) : std::nullopt;
}

// Returns the CPUs in the file; empty if it does not exist or holds no list.
std::vector<int> read_list(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  auto list = parse_cpu_list(line);
  return list.ok() ? *std::move(list) : std::vector<int>();
}

std::vector<int> read_nodes(const fs::path& folder) {
  std::vector<int> nodes;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (const auto node = parse_cpu(name.substr(std::min<std::size_t>(4, name.size())));
        name.starts_with("node") && node) {
      nodes.push_back(*node);
    }
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

}  // namespace

Topology read_topology(const fs::path& sys, std::span<const int> cpus) {
  Topology topology;
  for (const int cpu : cpus) {
    const std::vector<int> siblings =
        read_list(sys / fmt::format("devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    topology.cpus.push_back({.cpu = cpu, .core = siblings.empty() ? cpu : siblings.front()});
  }
  const fs::path nodes = sys / "devices/system/node";
  for (const int node : read_nodes(nodes)) {
    for (const int cpu : read_list(nodes / fmt::format("node{}/cpulist", node))) {
      const auto place = std::lower_bound(topology.cpus.begin(), topology.cpus.end(), cpu,
                                          [](const CpuPlace& a, int b) { return a.cpu < b; });
      if (place != topology.cpus.end() && place->cpu == cpu) {
        place->node = node;
      }
    }
  }
  topology.memory_nodes = read_list(nodes / "has_memory");
  return topology;
}

// Lines are such as "Node 0 MemFree:  123 kB".
std::map<int, std::int64_t> read_free_memory(const fs::path& sys, std::span<const int> nodes) {
  std::map<int, std::int64_t> free;
  for (const int node : nodes) {
    std::ifstream file(sys / fmt::format("devices/system/node/node{}/meminfo", node));
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name, number, key;
      std::int64_t kib = 0;
      words >> name >> number >> key >> kib;
      if (key == "MemFree:" || key == "Active(file):" || key == "Inactive(file):") {
        free[node] += kib * kKiB;
      }
    }
  }
  return free;
}

Result<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const auto run = parse_run(rest.substr(0, comma));
    if (!run) {
      return make_error(ErrorCode::kInvalidArgument,
                        "'{}' is not a list of CPUs like 0-7,16: numbers and runs from 0 to {}",
                        text, kHighestCpu);
    }
    for (int cpu = run->first; cpu <= run->second; ++cpu) {
      cpus.push_back(cpu);
    }
    if (comma == rest.npos) {
      break;
    }
    rest = rest.substr(comma + 1);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string format_cpu_list(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < cpus.size(); begin = end) {
    for (end = begin + 1; end < cpus.size() && cpus[end] == cpus[end - 1] + 1; ++end) {
    }
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[begin]);
    if (end - begin > 1) {
      text += fmt::format("-{}", cpus[end - 1]);
    }
  }
  return text;
}

}  // namespace protean
