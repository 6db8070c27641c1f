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
