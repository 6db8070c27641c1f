#include "apps/memory_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "cost/pages.h"

namespace protean {
namespace {

constexpr std::int64_t kRowLetters = 64;  // letters of a row

struct Kind {
  char letter = ' ';
  std::string_view name;
  std::int64_t pages = 0;
};

// The sum of the first two kinds' layers, then embeddings, KV and what is free.
std::array<Kind, 5> kinds_of(const DevicePages& device, std::int64_t all) {
  std::array<Kind, 5> kinds = {{{'A', "attention"},
                                {'M', "MLP"},
                                {'E', "embeddings", device.embeddings},
                                {'K', "KV", device.kv},
                                {'.', "free", all - device.embeddings - device.kv}}};
  for (const auto& [attention, mlp] : device.layers) {
    kinds[0].pages += attention;
    kinds[1].pages += mlp;
    kinds[4].pages -= attention + mlp;
  }
  return kinds;
}

// Each letter stands for an equal number of pages; borders are rounded.
std::string row_of(const std::array<Kind, 5>& kinds, std::int64_t all) {
  std::string row;
  std::int64_t pages = 0;
  for (const Kind& kind : kinds) {
    pages += kind.pages;
    row.resize(static_cast<std::size_t>((pages * kRowLetters + all / 2) / all), kind.letter);
  }
  return row;
}

std::string shards_text(const ShardRun& run, int shards) {
  if (run.count == shards) {
    return "";
  }
  return run.count == 1 ? fmt::format(" in shard {} of {}", run.first, shards)
                        : fmt::format(" in shards {}-{} of {}", run.first, run.end() - 1, shards);
}

// Returns a text such as "layers 0-8 in shards 0-1 of 4, embeddings in shards 0-1 of 4".
std::string holding_text(const Holding& holding, int shards) {
  std::vector<std::string> held;
  const auto& layers = holding.layers;
  for (std::size_t first = 0; first < layers.size();) {
    std::size_t end = first + 1;
    while (end < layers.size() && layers[end] == layers[first]) {
      ++end;
    }
    if (!layers[first].empty()) {  // a form at the start divides both halves of a layer alike
      held.push_back((end - first == 1 ? fmt::format("layer {}", first)
                                       : fmt::format("layers {}-{}", first, end - 1)) +
                     shards_text(layers[first].attention, shards));
    }
    first = end;
  }
  if (!holding.embeddings.empty()) {
    held.push_back("embeddings" + shards_text(holding.embeddings, shards));
  }
  return fmt::format("{}", fmt::join(held, ", "));
}

// Returns the pages that each device of a replica lacks because of what its replica lacks.
std::int64_t lacking_of(const Sizing& sizing, int replica) {
  return sizing.unequal.empty() ? 0
                                : sizing.unequal[static_cast<std::size_t>(replica)].lacking_pages;
}

// Returns a text such as "  device 1", or "  devices 1, 3, 5" of three replicas that are alike.
// `replica` is the first of these.
std::string name_of(std::size_t device, const Sizing& sizing, int replica) {
  std::vector<std::size_t> numbers;
  for (int other = replica; other < sizing.replicas(); ++other) {
    if (lacking_of(sizing, other) == lacking_of(sizing, replica)) {
      numbers.push_back(static_cast<std::size_t>(other) * sizing.form.group.size() + device);
    }
  }
  return fmt::format("  device{} {}", numbers.size() == 1 ? "" : "s", fmt::join(numbers, ", "));
}

std::string line(std::string_view name, std::string_view text) {
  return fmt::format("{:<24}{}\n", name, text);
}

// Returns the rows of the devices of a replica.
std::string rows_of(const ModelSpec& spec, const Sizing& sizing, int replica) {
  const PageBudget& budget = sizing.budget;
  const Form form = sizing_of(sizing, replica).form;
  const std::vector<DevicePages> devices = pages_by_device(spec, form, budget.page_bytes);
  std::string rows;
  for (std::size_t device = 0; device < devices.size(); ++device) {
    const std::int64_t all = budget.pages - form.group[device].lacking_pages;
    const auto kinds = kinds_of(devices[device], all);
    std::vector<std::string> pages;
    for (const Kind& kind : kinds) {
      pages.push_back(fmt::format("{} {}", kind.name, kind.pages));
    }
    rows += line(sizing.devices.size() == 1 ? "" : name_of(device, sizing, replica),
                 row_of(kinds, all));
    rows += line("", fmt::format("{}: {} pages", holding_text(form.group[device], form.shards),
                                 fmt::join(pages, ", ")));
  }
  return rows;
}

}  // namespace

std::string memory_map(const ModelSpec& spec, const Sizing& sizing) {
  const PageBudget& budget = sizing.budget;
  std::string map =
      line("memory map", fmt::format("{}{} pages of {} a device: A attention, M MLP, E embedding "
                                     "matrix and LM head, K KV cache, . free",
                                     lacking_pages(sizing) > 0 ? "up to " : "", budget.pages,
                                     format_bytes(budget.page_bytes)));
  std::set<std::int64_t> seen;
  for (int replica = 0; replica < sizing.replicas(); ++replica) {
    map += seen.insert(lacking_of(sizing, replica)).second ? rows_of(spec, sizing, replica) : "";
  }
  return map;
}

}  // namespace protean
