#include "worker/group.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

std::vector<Copy> copies_in(const Form& form, int layer, Component component) {
  return copies_of(form.group, layer, component, form.shards);
}

// Returns the members of a copy; nothing if it is one device, which exchanges nothing.
std::vector<cpu::Member> members_of(const Form& form, const Copy& copy, int layer,
                                    Component component) {
  std::vector<cpu::Member> members;
  for (const int device : copy) {
    const ShardRun& run = form.group[static_cast<std::size_t>(device)].of(layer, component);
    members.push_back({.device = device, .first_shard = run.first, .shards = run.count});
  }
  return members.size() > 1 ? members : std::vector<cpu::Member>();
}

Status refuse_unsupported(const Form& form) {
  const auto refused = [](const std::string& what) {
    return make_error(ErrorCode::kUnsupported,
                      "a group computes one copy of each layer, with its attention and its MLP on "
                      "the same devices, and has the embeddings where the first and the last "
                      "layers are; {}",
                      what);
  };
  const int layers = static_cast<int>(form.layer_precision.size());
  for (int layer = 0; layer < layers; ++layer) {
    const auto attention = copies_in(form, layer, Component::kAttention);
    if (attention.size() != 1 || attention != copies_in(form, layer, Component::kMlp)) {
      return refused(fmt::format("layer {} is held otherwise", layer));
    }
  }
  const auto embeddings = copies_in(form, 0, Component::kEmbeddings);
  for (const Stage& stage : stages_of(form)) {
    const bool outer = stage.first_layer == 0 || stage.first_layer + stage.layer_count == layers;
    if (outer &&
        std::find(embeddings.begin(), embeddings.end(), stage.devices) == embeddings.end()) {
      return refused(fmt::format("the devices of layer {} do not hold them", stage.first_layer));
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Group>> Group::create(const Form& form, const ModelSpec& spec,
                                             const Limits& limits) {
  if (const Status supported = refuse_unsupported(form); !supported) {
    return supported.error();
  }
  std::unique_ptr<Group> group(new Group(form, spec, limits));
  const auto widest = [](const Stage& a, const Stage& b) {
    return a.devices.size() < b.devices.size();
  };
  const auto [least, most] =
      std::minmax_element(group->stages_.begin(), group->stages_.end(), widest);
  if (least->devices.size() != most->devices.size() ||
      std::ssize(group->stages_) * std::ssize(most->devices) != std::ssize(form.group)) {
    return make_error(ErrorCode::kUnsupported,
                      "every device of a group belongs to one stage, and all stages have as many "
                      "devices, unlike those of '{}'",
                      to_string(form));
  }
  if (group->stages_.size() > 1) {
    Result<cpu::Region> memory =
        cpu::Region::map(std::ssize(form.group) * limits.steps_in_flight * group->slot_floats_ *
                         std::int64_t{sizeof(float)});
    if (!memory) {
      return memory.error();
    }
    group->memory_ = std::move(*memory);
  }
  return group;
}

Group::Group(const Form& form, const ModelSpec& spec, const Limits& limits)
    : limits_(limits),
      slot_floats_(std::int64_t{limits.rows} * spec.hidden),
      stages_(stages_of(form)),
      place_(form.group.size()),
      board_(static_cast<int>(form.group.size()), limits.spins) {
  for (int stage = 0; stage < static_cast<int>(stages_.size()); ++stage) {
    const Copy& devices = stages_[static_cast<std::size_t>(stage)].devices;
    for (int rank = 0; rank < static_cast<int>(devices.size()); ++rank) {
      place_[static_cast<std::size_t>(devices[static_cast<std::size_t>(rank)])] = {stage, rank};
    }
  }
  const Copy& first = stages_.front().devices;
  const Copy& last = stages_.back().devices;
  members_.embedding = members_of(form, first, 0, Component::kEmbeddings);
  members_.logits = members_of(form, last, 0, Component::kEmbeddings);
  for (cpu::Member& member : members_.logits) {
    member.collects = member.device == drawer();
  }
  for (int layer = 0; layer < spec.layers; ++layer) {
    for (const Component half : kLayerHalves) {
      const auto copies = copies_in(form, layer, half);
      auto& members = half == Component::kAttention ? members_.attention : members_.mlp;
      members.push_back(members_of(form, copies.front(), layer, half));
    }
  }
}

int Group::peer(int device, int apart) const {
  const Place& place = place_[static_cast<std::size_t>(device)];
  const int stage = place.stage + apart;
  check(stage >= 0 && stage < std::ssize(stages_), "there is a stage to hand over to");
  return stages_[static_cast<std::size_t>(stage)].devices[static_cast<std::size_t>(place.rank)];
}

std::span<float> Group::mailbox(int device, std::uint64_t step) {
  const auto slots = static_cast<std::uint64_t>(limits_.steps_in_flight);
  const auto slot = static_cast<std::int64_t>(device * slots + step % slots);
  return {reinterpret_cast<float*>(memory_.data()) + slot * slot_floats_,
          static_cast<std::size_t>(slot_floats_)};
}

}  // namespace protean
