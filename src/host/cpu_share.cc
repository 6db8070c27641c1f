#include "host/cpu_share.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "base/check.h"
#include "host/topology.h"

namespace protean {
namespace {

constexpr int kMostThreadsOfCpu = 4;

// Returns the CPUs of --cpus, by node and core. Fails if this process may not use one of them.
Result<std::vector<CpuPlace>> wanted_cpus(const Topology& topology, const std::string& list) {
  std::vector<CpuPlace> wanted = topology.cpus;
  if (!list.empty()) {
    const auto numbers = parse_cpu_list(list);
    if (!numbers.ok()) {
      return make_error(numbers.error().code, "--cpus: {}", numbers.error().message);
    }
    std::erase_if(wanted, [&](const CpuPlace& place) {
      return !std::binary_search(numbers->begin(), numbers->end(), place.cpu);
    });
    if (wanted.size() != numbers->size()) {
      std::vector<int> allowed;
      for (const CpuPlace& place : topology.cpus) {
        allowed.push_back(place.cpu);
      }
      return make_error(ErrorCode::kInvalidArgument,
                        "--cpus {}: this process may use {} only: name some of these", list,
                        format_cpu_list(std::move(allowed)));
    }
  }
  std::sort(wanted.begin(), wanted.end(), [](const CpuPlace& a, const CpuPlace& b) {
    return std::tie(a.node, a.core, a.cpu) < std::tie(b.node, b.core, b.cpu);
  });
  return wanted;
}

// Returns the index at which each core begins in CPUs sorted by core, and the end of the last.
std::vector<std::size_t> core_bounds(std::span<const CpuPlace> cpus) {
  std::vector<std::size_t> bounds;
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    if (i == 0 || cpus[i].core != cpus[i - 1].core) {
      bounds.push_back(i);
    }
  }
  bounds.push_back(cpus.size());
  return bounds;
}

// Returns the indices at which a device may begin: at cores, or at any CPU if there are fewer cores
// than devices.
std::vector<std::size_t> bounds_for(std::span<const CpuPlace> cpus, std::size_t devices) {
  std::vector<std::size_t> bounds = core_bounds(cpus);
  if (bounds.size() - 1 < devices) {
    bounds.resize(cpus.size() + 1);
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      bounds[i] = i;
    }
  }
  return bounds;
}

cpu::Locality locality_of(std::span<const CpuPlace> cpus, std::span<const int> memory_nodes) {
  struct Ranked {
    int sibling = 0;
    CpuPlace place;
  };
  std::vector<Ranked> ranked;
  for (const CpuPlace& place : cpus) {
    const bool same_core = !ranked.empty() && ranked.back().place.core == place.core;
    ranked.push_back({same_core ? ranked.back().sibling + 1 : 0, place});
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Ranked& a, const Ranked& b) { return a.sibling < b.sibling; });
  cpu::Locality where;
  for (const Ranked& one : ranked) {
    where.cpus.push_back(one.place.cpu);
    const auto has = [&](std::span<const int> nodes) {
      return std::find(nodes.begin(), nodes.end(), one.place.node) != nodes.end();
    };
    // Memory is bound to nodes only if there are several.
    if (memory_nodes.size() > 1 && has(memory_nodes) && !has(where.nodes)) {
      where.nodes.push_back(one.place.node);
    }
  }
  return where;
}

}  // namespace

Status check_threads(const Machine& machine, int threads) {
  const auto cpus = static_cast<int>(machine.topology.cpus.size());
  const int most = kMostThreadsOfCpu * cpus;
  return threads <= most
             ? Status()
             : make_error(ErrorCode::kInvalidArgument,
                          "threads {}: this process may use {} CPU{}: use at most {} threads",
                          threads, cpus, cpus == 1 ? "" : "s", most);
}

Result<std::vector<CpuShare>> divide_cpus(const Machine& machine, const ComputeOptions& options,
                                          int devices) {
  check(devices >= 1, "there is a device to divide for");
  const auto cpus = wanted_cpus(machine.topology, options.cpus);
  if (!cpus.ok()) {
    return cpus.error();
  }
  if (const Status fits = check_threads(machine, options.threads); !fits.ok()) {
    return fits.error();
  }
  const auto count = static_cast<std::size_t>(devices);
  if (count > cpus->size()) {
    const cpu::Locality all = locality_of(*cpus, machine.topology.memory_nodes);
    return std::vector<CpuShare>(count, {.threads = std::max(1, options.threads), .where = all});
  }
  const std::vector<std::size_t> bounds = bounds_for(*cpus, count);
  const std::size_t pieces = bounds.size() - 1;
  const auto total = static_cast<int>(cpus->size());
  const int busy = std::min(total, machine.cores);  // limited by the quota
  std::vector<CpuShare> shares;
  for (std::size_t device = 0; device < count; ++device) {
    const std::size_t begin = bounds[device * pieces / count];
    const std::size_t end = bounds[(device + 1) * pieces / count];
    const auto all = static_cast<int>(end - begin);
    CpuShare share{
        .threads = options.threads > 0 ? options.threads : std::max(1, all * busy / total),
        .where = locality_of(std::span(*cpus).subspan(begin, end - begin),
                             machine.topology.memory_nodes)};
    // Threads are pinned only to CPUs that a user names: pinning gained nothing on two cores, and
    // two processes that pin could share a CPU while others are idle.
    share.where.pinned = !options.cpus.empty() && share.threads == all;
    shares.push_back(std::move(share));
  }
  return shares;
}

Result<CpuShare> choose_cpus(const Machine& machine, const ComputeOptions& options) {
  auto shares = divide_cpus(machine, options, 1);
  return shares.ok() ? Result<CpuShare>(std::move(shares->front())) : shares.error();
}

std::string to_string(const CpuShare& share) {
  const std::size_t cpus = share.where.cpus.size();
  std::string text =
      fmt::format("{} thread{} on CPU{} {}", share.threads, share.threads == 1 ? "" : "s",
                  cpus == 1 ? "" : "s", format_cpu_list(share.where.cpus));
  if (share.where.pinned) {
    text += ", pinned";
  }
  if (!share.where.nodes.empty()) {
    text += fmt::format(", memory of node{} {}", share.where.nodes.size() == 1 ? "" : "s",
                        format_cpu_list(share.where.nodes));
  }
  return text;
}

}  // namespace protean
