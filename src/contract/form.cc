#include "contract/form.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace protean {
namespace {

template <class... Args>
Error illegal(fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorCode::kInvalidArgument,
               "illegal form: " + fmt::format(format, std::forward<Args>(args)...)};
}

Status validate_stages(const Form& form, const ModelSpec& spec,
                       std::span<const DeviceSpec> devices) {
  int next_layer = 0;
  std::vector<DeviceId> used;
  for (const Stage& stage : form.stages) {
    if (stage.first_layer != next_layer || stage.layer_count <= 0) {
      return illegal("a stage of {} layers begins at layer {}, expected {}", stage.layer_count,
                     stage.first_layer, next_layer);
    }
    next_layer += stage.layer_count;
    if (static_cast<int>(stage.devices.size()) != form.tp_degree) {
      return illegal("a stage has {} devices at TP degree {}", stage.devices.size(),
                     form.tp_degree);
    }
    for (const DeviceId device : stage.devices) {
      const bool known = std::any_of(devices.begin(), devices.end(),
                                     [&](const DeviceSpec& have) { return have.id == device; });
      if (!known) {
        return illegal("device {} does not exist", device.value);
      }
      if (std::find(used.begin(), used.end(), device) != used.end()) {
        return illegal("device {} is used twice", device.value);
      }
      used.push_back(device);
    }
  }
  if (next_layer != spec.layers) {
    return illegal("its stages hold {} layers, the model has {}", next_layer, spec.layers);
  }
  return {};
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
  form.stages = {Stage{.first_layer = 0, .layer_count = spec.layers, .devices = {device}}};
  form.layer_precision = std::move(layers);
  form.embeddings = default_embeddings_precision(highest_precision(form));
  form.kv = kv;
  return form;
}

Status validate(const Form& form, const ModelSpec& spec, std::span<const DeviceSpec> devices) {
  if (form.tp_degree <= 0 || form.largest_tp_degree < form.tp_degree ||
      form.largest_tp_degree % form.tp_degree != 0) {
    return illegal("TP degree {} must divide the largest TP degree {}", form.tp_degree,
                   form.largest_tp_degree);
  }
  if ((form.largest_tp_degree & (form.largest_tp_degree - 1)) != 0) {  // sums are a tree of pairs
    return illegal("the largest TP degree {} is no power of two", form.largest_tp_degree);
  }
  if (spec.attention.kv_heads % form.largest_tp_degree != 0) {
    return illegal("{} KV heads do not split into {} groups", spec.attention.kv_heads,
                   form.largest_tp_degree);
  }
  if (static_cast<int>(form.layer_precision.size()) != spec.layers) {
    return illegal("{} layer precisions for {} layers", form.layer_precision.size(), spec.layers);
  }
  if (form.kv.block_tokens <= 0 || form.kv.blocks <= 0) {
    return illegal("KV needs at least one block of at least one token, got {} of {}",
                   form.kv.blocks, form.kv.block_tokens);
  }
  return validate_stages(form, spec, devices);
}

Precision highest_precision(const Form& form) {
  const auto highest =
      std::find_if(kPrecisions.begin(), kPrecisions.end(),
                   [&](Precision precision) { return layers_at(form, precision) > 0; });
  return highest == kPrecisions.end() ? Precision::kBf16 : *highest;
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
  return fmt::format("{} stage{} x TP {}, layers {}, embeddings {}, KV {} {} blocks of {} tokens",
                     form.stages.size(), form.stages.size() == 1 ? "" : "s", form.tp_degree, layers,
                     to_string(form.embeddings), to_string(form.kv.precision), form.kv.blocks,
                     form.kv.block_tokens);
}

}  // namespace protean
