#include "contract/form.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

template <class... Args>
Error illegal(fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorCode::kInvalidArgument,
               "illegal form: " + fmt::format(format, std::forward<Args>(args)...)};
}

Status validate_run(const ShardRun& run, int shards, const std::string& what) {
  const bool aligned = run.count >= 0 && run.first >= 0 && (run.count & (run.count - 1)) == 0 &&
                       (run.count == 0 || run.first % run.count == 0);
  if (!aligned || run.end() > shards) {
    return illegal("{}: shards {} to {} of {} are no aligned run of a power of two", what,
                   run.first, run.end() - 1, shards);
  }
  return {};
}

Status validate_devices(const Form& form, const ModelSpec& spec,
                        std::span<const DeviceSpec> devices) {
  if (form.group.empty()) {
    return illegal("no device holds anything");
  }
  std::vector<DeviceId> used;
  for (const Holding& holding : form.group) {
    const DeviceId device = holding.device;
    const bool known = std::any_of(devices.begin(), devices.end(),
                                   [&](const DeviceSpec& have) { return have.id == device; });
    if (!known) {
      return illegal("device {} does not exist", device.value);
    }
    if (std::find(used.begin(), used.end(), device) != used.end()) {
      return illegal("device {} is used twice", device.value);
    }
    used.push_back(device);
    if (holding.lacking_pages < 0) {
      return illegal("device {} lacks {} pages", device.value, holding.lacking_pages);
    }
    if (static_cast<int>(holding.layers.size()) != spec.layers) {
      return illegal("device {} is told of {} layers, the model has {}", device.value,
                     holding.layers.size(), spec.layers);
    }
  }
  return {};
}

// Checks the runs of a component on all devices, and that they make at least one whole copy.
Status validate_component(const Form& form, int layer, Component component) {
  for (const Holding& holding : form.group) {
    const std::string what =
        fmt::format("{} on device {}", component_name(layer, component), holding.device.value);
    if (Status valid = validate_run(holding.of(layer, component), form.shards, what); !valid) {
      return valid;
    }
  }
  if (copies_of(form.group, layer, component, form.shards).empty()) {
    return illegal("the devices do not hold whole copies of {}", component_name(layer, component));
  }
  return {};
}

Status validate_holdings(const Form& form, const ModelSpec& spec,
                         std::span<const DeviceSpec> devices) {
  if (Status valid = validate_devices(form, spec, devices); !valid) {
    return valid;
  }
  for (int layer = 0; layer < spec.layers; ++layer) {
    for (const Component half : kLayerHalves) {
      if (Status valid = validate_component(form, layer, half); !valid) {
        return valid;
      }
    }
  }
  return validate_component(form, 0, Component::kEmbeddings);
}

}  // namespace

std::string_view to_string(Component component) {
  switch (component) {
    case Component::kAttention:
      return "attention";
    case Component::kMlp:
      return "mlp";
    case Component::kEmbeddings:
      return "embeddings";
  }
  return "?";
}

std::string component_name(int layer, Component component) {
  return component == Component::kEmbeddings
             ? std::string(to_string(component))
             : fmt::format("layer {} {}", layer, to_string(component));
}

std::string to_string(const LayerPrecision& layer) {
  return layer.attention == layer.mlp
             ? std::string(to_string(layer.attention))
             : fmt::format("{}/{}", to_string(layer.attention), to_string(layer.mlp));
}

std::string_view to_string(KvPrecision precision) {
  switch (precision) {
    case KvPrecision::kF32:
      return "f32";
    case KvPrecision::kBf16:
      return "bf16";
    case KvPrecision::kInt8:
      return "int8";
  }
  return "?";
}

KvPrecision default_kv_precision(Precision precision) {
  return precision == Precision::kF32 ? KvPrecision::kF32 : KvPrecision::kBf16;
}

Precision default_embeddings_precision(Precision layers) {
  if (layers == Precision::kS24) {
    return Precision::kBf16;
  }
  return layers.quantised() ? Precision{WeightStorage::kW8, layers.activation_bits} : layers;
}

namespace {

// Returns all precisions with the weights of one of `kept`, from the highest to the lowest.
std::vector<Precision> stored_like(std::span<const Precision> kept) {
  std::vector<Precision> all;
  std::copy_if(
      kPrecisions.begin(), kPrecisions.end(), std::back_inserter(all), [kept](Precision precision) {
        return std::any_of(kept.begin(), kept.end(),
                           [precision](Precision one) { return one.weights == precision.weights; });
      });
  return all;
}

}  // namespace

std::vector<Precision> layer_precisions(const Form& start, std::span<const Precision> ladder) {
  std::vector<Precision> all = stored_like(ladder);
  for (const LayerPrecision& layer : start.layer_precision) {
    for (const Component half : kLayerHalves) {
      all.push_back(layer.of(half));
    }
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::vector<Precision> embeddings_precisions(Precision start, std::span<const Precision> ladder) {
  std::vector<Precision> kept = {start};
  std::transform(ladder.begin(), ladder.end(), std::back_inserter(kept),
                 default_embeddings_precision);
  return stored_like(kept);
}

Form single_device_form(const ModelSpec& spec, Precision precision, DeviceId device, KvForm kv) {
  const auto layers = static_cast<std::size_t>(spec.layers);
  return single_device_form(spec, std::vector<LayerPrecision>(layers, {precision, precision}),
                            device, kv);
}

Form single_device_form(const ModelSpec& spec, std::vector<LayerPrecision> layers, DeviceId device,
                        KvForm kv) {
  Form form;
  form.group = {whole_model(spec.layers, form.shards, device)};
  form.layer_precision = std::move(layers);
  form.embeddings = default_embeddings_precision(highest_precision(form));
  form.kv = kv;
  return form;
}

Division even_division(int layers, int tensor, int stages) {
  Division division{.tensor = tensor, .stage_layers = {}};
  for (int stage = 0; stage < stages; ++stage) {
    division.stage_layers.push_back(layers / stages + (stage < layers % stages ? 1 : 0));
  }
  return division;
}

Form divide(Form form, const Division& division, std::span<const DeviceId> devices) {
  const auto layers = form.layer_precision.size();
  const int tensor = division.tensor;
  check(division.devices() == std::ssize(devices), "a division is for as many devices");
  check(tensor > 0 && form.shards % tensor == 0, "every device has as many shards");
  form.group.clear();
  std::size_t first = 0;
  for (std::size_t stage = 0; stage < division.stage_layers.size(); ++stage) {
    const auto count = static_cast<std::size_t>(division.stage_layers[stage]);
    const bool outer = stage == 0 || stage + 1 == division.stage_layers.size();
    for (int rank = 0; rank < tensor; ++rank) {
      const ShardRun run{rank * (form.shards / tensor), form.shards / tensor};
      Holding holding{.device = devices[form.group.size()],
                      .layers = std::vector<Holding::Layer>(layers),
                      .embeddings = outer ? run : ShardRun{}};
      for (std::size_t layer = first; layer < first + count; ++layer) {
        holding.layers.at(layer) = {run, run};
      }
      form.group.push_back(std::move(holding));
    }
    first += count;
  }
  check(first == layers, "the stages have all layers");
  return form;
}

std::vector<Stage> stages_of(const Form& form) {
  std::vector<Stage> stages;
  for (int layer = 0; layer < static_cast<int>(form.layer_precision.size()); ++layer) {
    const auto copies = copies_of(form.group, layer, Component::kAttention, form.shards);
    const Copy devices = copies.empty() ? Copy() : copies.front();
    if (stages.empty() || stages.back().devices != devices) {
      stages.push_back({.first_layer = layer, .layer_count = 0, .devices = devices});
    }
    ++stages.back().layer_count;
  }
  return stages;
}

Status validate(const Form& form, const ModelSpec& spec, std::span<const DeviceSpec> devices) {
  if (form.shards <= 0 || (form.shards & (form.shards - 1)) != 0) {  // sums are a tree of pairs
    return illegal("the number of shards, {}, is no power of two", form.shards);
  }
  if (!can_shard(spec, form.shards)) {
    return illegal("{} KV heads do not divide into {} shards", spec.attention.kv_heads,
                   form.shards);
  }
  const int kept = form.attention_kept;
  if (kept < 0 || kept > form.shards || (kept & (kept - 1)) != 0) {
    return illegal("devices cannot keep {} of {} shards of attention weights", kept, form.shards);
  }
  if (static_cast<int>(form.layer_precision.size()) != spec.layers) {
    return illegal("{} layer precisions for {} layers", form.layer_precision.size(), spec.layers);
  }
  if (form.kv.block_tokens <= 0 || form.kv.blocks <= 0) {
    return illegal("KV needs at least one block of at least one token, got {} of {}",
                   form.kv.blocks, form.kv.block_tokens);
  }
  return validate_holdings(form, spec, devices);
}

Precision highest_precision(const Form& form) {
  const auto highest =
      std::find_if(kPrecisions.begin(), kPrecisions.end(),
                   [&](Precision precision) { return layers_at(form, precision) > 0; });
  return highest == kPrecisions.end() ? Precision::kBf16 : *highest;
}

ShardRun shards_kept(const Form& form, Component component, const ShardRun& run) {
  return component == Component::kAttention ? widened(run, form.attention_kept) : run;
}

Precision precision_of(const Form& form, int layer, Component component) {
  return component == Component::kEmbeddings
             ? form.embeddings
             : form.layer_precision.at(static_cast<std::size_t>(layer)).of(component);
}

Precision& precision_of(Form& form, int layer, Component component) {
  return component == Component::kEmbeddings
             ? form.embeddings
             : form.layer_precision.at(static_cast<std::size_t>(layer)).of(component);
}

bool equally_precise(const Form& a, const Form& b) {
  return a.layer_precision == b.layer_precision && a.embeddings == b.embeddings;
}

double layers_at(const Form& form, Precision precision) {
  int halves = 0;
  for (const LayerPrecision& layer : form.layer_precision) {
    for (const Component half : kLayerHalves) {
      halves += layer.of(half) == precision ? 1 : 0;
    }
  }
  return 0.5 * halves;
}

std::string precision_label(const Form& form) {
  std::string label;
  for (const Precision precision : kPrecisions) {
    if (const double layers = layers_at(form, precision); layers > 0) {
      label += fmt::format("{}{}:{}", label.empty() ? "" : "+", to_string(precision), layers);
    }
  }
  if (weight_bits(form.embeddings) <
      weight_bits(default_embeddings_precision(highest_precision(form)))) {
    label += fmt::format("+embeddings:{}", to_string(form.embeddings));
  }
  return label;
}

void add(std::vector<TokensAt>& sum, std::span<const TokensAt> more) {
  for (const TokensAt& at : more) {
    const auto same = std::find_if(sum.begin(), sum.end(), [&](const TokensAt& have) {
      return have.precision == at.precision;
    });
    if (same == sum.end()) {
      sum.push_back(at);
    } else {
      same->tokens += at.tokens;
    }
  }
}

namespace {

// Returns "1 stage x TP 1" or "2 stages (10, 6 layers) x TP 2".
std::string division_text(const Form& form) {
  const std::vector<Stage> stages = stages_of(form);
  std::string layers;
  std::size_t widest = 0;
  for (const Stage& stage : stages) {
    layers += fmt::format("{}{}", layers.empty() ? "" : ", ", stage.layer_count);
    widest = std::max(widest, stage.devices.size());
  }
  return stages.size() == 1
             ? fmt::format("1 stage x TP {}", widest)
             : fmt::format("{} stages ({} layers) x TP {}", stages.size(), layers, widest);
}

}  // namespace

std::string to_string(const Form& form) {
  std::string layers;
  for (std::size_t i = 0; i < form.layer_precision.size();) {
    std::size_t end = i;
    while (end < form.layer_precision.size() &&
           form.layer_precision[end] == form.layer_precision[i]) {
      ++end;
    }
    layers += fmt::format("{}{}:{}", layers.empty() ? "" : ",", to_string(form.layer_precision[i]),
                          end - i);
    i = end;
  }
  return fmt::format("{}, layers {}, embeddings {}, KV {} {} blocks of {} tokens",
                     division_text(form), layers, to_string(form.embeddings),
                     to_string(form.kv.precision), form.kv.blocks, form.kv.block_tokens);
}

}  // namespace protean
