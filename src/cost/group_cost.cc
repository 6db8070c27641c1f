#include "cost/group_cost.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "contract/configuration.h"
#include "cost/configuration_cost.h"
#include "cost/memory.h"

namespace protean {
namespace {

constexpr double kProfileActivationBytes = 2;

bool meets(const Copy& a, const Copy& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](int device) { return std::find(b.begin(), b.end(), device) != b.end(); });
}

bool within(const Copy& a, const Copy& b) {
  return std::all_of(a.begin(), a.end(),
                     [&](int device) { return std::find(b.begin(), b.end(), device) != b.end(); });
}

void add_part(std::vector<Stretch>& stretches, const DeviceWork& part, std::vector<Copy> copies) {
  if (!stretches.empty() && stretches.back().copies == copies) {
    DeviceWork& last = stretches.back().part;
    last.weights += part.weights;
    last.attention += part.attention;
    last.logits = last.logits || part.logits;
    return;
  }
  stretches.push_back({part, std::move(copies)});
}

// Returns the copies of the LM head that compute: those on devices that hold the last layer, else
// all.
std::vector<Copy> head_copies(const Form& form, const std::vector<Copy>& last) {
  std::vector<Copy> copies = copies_of(form.group, 0, Component::kEmbeddings, form.shards);
  std::vector<Copy> near;
  std::copy_if(copies.begin(), copies.end(), std::back_inserter(near), [&](const Copy& copy) {
    return std::any_of(last.begin(), last.end(),
                       [&](const Copy& other) { return meets(copy, other); });
  });
  return near.empty() ? copies : near;
}

// Returns what a device has of a home's blocks.
ShardRun run_for(const Form& form, int layer, int device, const Copy& home) {
  const std::vector<Copy> copies = copies_of(form.group, layer, Component::kAttention, form.shards);
  const auto own = std::find_if(copies.begin(), copies.end(),
                                [&](const Copy& copy) { return within(copy, home); });
  const Copy& copy = own != copies.end() ? *own : copies.front();
  const bool computes = std::find(copy.begin(), copy.end(), device) != copy.end();
  return computes ? form.group[static_cast<std::size_t>(device)].of(layer, Component::kAttention)
                  : ShardRun{};
}

}  // namespace

const StepCost& GroupCost::on(std::size_t devices) const {
  std::size_t power = std::min<std::size_t>(std::bit_width(devices) - 1, kDegrees - 1);
  while (power > 0 && !shared[power].is_known()) {
    --power;
  }
  return shared[power];
}

GroupCost group_cost(const DeviceProfile& device, const ModelSpec& spec,
                     std::span<const Precision> layers, KvPrecision kv) {
  GroupCost cost{
      .rows = device.send, .exchange = device.send, .activation_bytes = kProfileActivationBytes};
  for (std::size_t power = 0; power < GroupCost::kDegrees; ++power) {
    for (const Precision precision : layers) {
      const StepCost one =
          roofline_cost(device, spec, 1 << power, {.weights = precision, .kv = kv});
      StepCost& all = cost.shared[power];
      const Precision embeddings = default_embeddings_precision(precision);
      const auto of_layers = all.layers;
      const auto of_logits = all.logits;
      all = one;
      all.layers = of_layers;
      all.logits = of_logits;
      all.of(precision) = one.of(precision);
      all.logits_at(embeddings) = one.logits_at(embeddings);
    }
  }
  return cost;
}

GroupCost group_cost(const StepCost& alone, const ModelSpec& spec,
                     std::span<const Precision> layers, const Transfer& sums) {
  GroupCost cost{.rows = sums, .exchange = sums};
  for (std::size_t power = 0; power < GroupCost::kDegrees; ++power) {
    StepCost& all = cost.shared[power];
    all = alone;
    for (const Precision precision : layers) {
      const StepCost one = divided_cost(alone, spec, {.tensor = 1 << power, .weights = precision},
                                        power == 0 ? Transfer{} : sums);
      const Precision embeddings = default_embeddings_precision(precision);
      all.context_token_us = one.context_token_us;
      all.kv_token_us = one.kv_token_us;
      all.far_kv_token_us = one.far_kv_token_us;
      all.near_kv_tokens = one.near_kv_tokens;
      all.of(precision) = one.of(precision);
      all.logits_at(embeddings) = one.logits_at(embeddings);
    }
  }
  return cost;
}

GroupCost sequence_cost(const StepCost& alone, const ModelSpec& spec, KvPrecision kv,
                        const Transfer& exchange) {
  GroupCost cost{.rows = exchange, .exchange = exchange};
  const double kv_us = static_cast<double>(kv_token_bytes(spec, kv)) / exchange.bytes_per_us;
  for (std::size_t power = 0; power < GroupCost::kDegrees; ++power) {
    const double devices = 1 << power;
    const double others = (devices - 1) / devices;
    StepCost& all = cost.shared[power];
    all = alone;
    for (double* us :
         {&all.token_us, &all.context_token_us, &all.kv_token_us, &all.far_kv_token_us}) {
      *us /= devices;
    }
    all.near_kv_tokens *= devices;
    all.fixed_us += power == 0 ? 0 : 2.0 * spec.layers * exchange.us;
    for (LayersCost& layers : all.layers) {
      if (!layers.is_known()) {
        continue;
      }
      layers.token_us = layers.token_us / devices + others * kv_us;
      layers.more_token_us = layers.more_token_us / devices + others * kv_us;
      layers.bend_tokens *= devices;
      layers.tile_tokens *= devices;
      layers.pass_tokens *= devices;
    }
  }
  return cost;
}

std::vector<Stretch> stretches_of(const ModelSpec& spec, const Form& form) {
  const auto weights = [&](Component half) {
    return static_cast<double>(component_bytes(spec, half, Precision::kF32));
  };
  const double attention = weights(Component::kAttention);
  const double all = (attention + weights(Component::kMlp)) * spec.layers;
  std::vector<Stretch> stretches;
  for (int layer = 0; layer < spec.layers; ++layer) {
    for (const Component half : kLayerHalves) {
      const bool attends = half == Component::kAttention;
      add_part(stretches,
               {.weights = weights(half) / all,
                .attention = attends ? 1.0 / spec.layers : 0,
                .begins = stretches.empty(),
                .logits = false},
               copies_of(form.group, layer, half, form.shards));
    }
  }
  std::vector<Copy> head = head_copies(form, stretches.back().copies);
  add_part(stretches, {.weights = 0, .attention = 0, .begins = false}, std::move(head));
  return stretches;
}

StepCost cost_of(const GroupCost& cost, const ModelSpec& spec, const Form& form) {
  const std::vector<Stretch> stretches = stretches_of(spec, form);
  StepCost slowest = cost.on(stretches.front().copies.front().size());
  double weights = 0;
  double attention = 0;
  for (const Stretch& stretch : stretches) {
    weights = std::max(weights, stretch.part.weights);
    attention = std::max(attention, stretch.part.attention);
  }
  for (double* const time : {&slowest.context_token_us, &slowest.sequence_us, &slowest.kv_token_us,
                             &slowest.far_kv_token_us}) {
    *time *= attention;
  }
  slowest.near_kv_tokens /= attention;  // caches hold the KV of the stage's layers alone
  for (LayersCost& layers : slowest.layers) {
    for (double* const time :
         {&layers.step_us, &layers.token_us, &layers.more_token_us, &layers.tile_us}) {
      *time *= weights;
    }
  }
  return slowest;
}

StepCost path_cost_of(const GroupCost& cost, const ModelSpec& spec, const Form& form) {
  const std::vector<Stretch> stretches = stretches_of(spec, form);
  StepCost all = cost.on(stretches.front().copies.front().size());
  if (stretches.size() == 1 || !all.is_known()) {
    return cost_of(cost, spec, form);
  }
  const double hops = static_cast<double>(stretches.size()) - 1;
  all.fixed_us += hops * cost.rows.us;
  if (cost.rows.bytes_per_us > 0) {
    all.token_us += hops * spec.hidden * cost.activation_bytes / cost.rows.bytes_per_us;
  }
  return all;
}

std::vector<std::int64_t> kv_bytes_received(const ModelSpec& spec, const Form& before,
                                            const HoldShards& hold, std::span<const Copy> homes,
                                            std::span<const std::int64_t> live) {
  const Form next = after(before, hold);
  const std::int64_t shard_bytes = kv_layer_block_bytes(spec, before.kv) / before.shards;
  std::vector<std::int64_t> bytes;
  for (int device = 0; device < static_cast<int>(before.group.size()); ++device) {
    std::int64_t& received = bytes.emplace_back(0);
    for (std::size_t home = 0; home < homes.size(); ++home) {
      const ShardRun had = run_for(before, hold.layer, device, homes[home]);
      const ShardRun has = run_for(next, hold.layer, device, homes[home]);
      received += live[home] * new_shards(has, had) * shard_bytes;
    }
  }
  return bytes;
}

std::vector<std::int64_t> weight_bytes_fetched(const ModelSpec& spec, const Form& before,
                                               const HoldShards& hold) {
  const std::int64_t shard_bytes =
      component_bytes(spec, hold.component, precision_of(before, hold.layer, hold.component)) /
      before.shards;
  std::vector<std::int64_t> bytes;
  for (std::size_t device = 0; device < hold.runs.size(); ++device) {
    const ShardRun has = shards_kept(before, hold.component, hold.runs[device]);
    const ShardRun had =
        shards_kept(before, hold.component, before.group[device].of(hold.layer, hold.component));
    bytes.push_back(shard_bytes * new_shards(has, had));
  }
  return bytes;
}

}  // namespace protean
