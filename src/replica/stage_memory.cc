#include "replica/stage_memory.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

namespace protean {

std::vector<std::int64_t> memory_of_stages(const DeviceGroup& group,
                                           const std::vector<DeviceSpec>& devices) {
  const auto count = static_cast<std::size_t>(group.division.devices());
  std::vector<std::int64_t> memory;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::int64_t bytes = devices[i].memory_bytes;
    if (!group.devices[i].memory_bytes || (i >= count && bytes != memory[i % count])) {
      return {};
    }
    if (i < count) {
      memory.push_back(bytes);
    }
  }
  const bool alike =
      std::adjacent_find(memory.begin(), memory.end(), std::not_equal_to<>()) == memory.end();
  return alike || group.division.stage_layers.size() < 2 ? std::vector<std::int64_t>() : memory;
}

std::vector<std::int64_t> memory_of_replicas(const DeviceGroup& group,
                                             const std::vector<DeviceSpec>& devices,
                                             std::vector<std::int64_t> alike) {
  const auto count = static_cast<std::size_t>(group.division.devices());
  std::vector<std::int64_t> memory;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (!group.devices[i].memory_bytes) {
      return alike;
    }
    if (i % count == 0) {
      memory.push_back(devices[i].memory_bytes);
    }
    memory.back() = std::min(memory.back(), devices[i].memory_bytes);
  }
  return memory;
}

Status size_apart(const std::vector<std::int64_t>& memory,
                  const std::function<Status(std::int64_t memory_bytes, Sizing&)>& size_with,
                  Sizing& sizing) {
  std::vector<Sizing> each;
  for (const std::int64_t bytes : memory) {
    each.push_back(sizing);
    if (Status sized = size_with(bytes, each.back()); !sized.ok()) {
      return sized;
    }
  }
  const auto pages_of = [](const Sizing& one) { return one.budget.pages; };
  const auto [least, most] = std::ranges::minmax_element(each, {}, pages_of);
  const std::int64_t pages = most->budget.pages;
  const bool alike = least->budget.pages == pages;
  sizing = *least;
  for (const Sizing& one : each) {
    sizing.unequal.push_back({pages - one.budget.pages, one.form.kv.blocks, one.largest_kv_blocks});
  }
  sizing.budget.pages = pages;
  for (Holding& holding : sizing.form.group) {
    holding.lacking_pages = pages - least->budget.pages;
  }
  if (alike) {  // no replica can use more than it has
    sizing.unequal.clear();
  }
  return {};
}

Form with_stages(const ModelSpec& spec, const DeviceGroup& group, const std::string& stages,
                 const StageRoom& room, Form form) {
  const int tensor = group.division.tensor;
  StageRoom by_stage = room;
  by_stage.pages.clear();
  for (auto first = room.pages.begin(); first != room.pages.end(); first += tensor) {
    by_stage.pages.push_back(*std::min_element(first, first + tensor));
  }
  if (stages.empty()) {
    DeviceGroup divided = group;
    divided.division.stage_layers = stage_layers_for(spec, form, tensor, by_stage);
    if (!divided.division.stage_layers.empty()) {
      return divide(std::move(form), divided);
    }
  }
  return form;
}

std::int64_t give_pages(Form& form, const std::vector<std::int64_t>& pages) {
  const std::int64_t most = *std::max_element(pages.begin(), pages.end());
  for (std::size_t device = 0; device < pages.size(); ++device) {
    form.group[device].lacking_pages = most - pages[device];
  }
  return most;
}

}  // namespace protean
