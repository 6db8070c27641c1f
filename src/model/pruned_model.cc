#include "model/pruned_model.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <fstream>
#include <memory>
#include <utility>

#include "cost/pruned_spec.h"
#include "model/calibration.h"
#include "model/checkpoint_writer.h"
#include "model/half_split_checkpoint.h"
#include "model/hf_config_writer.h"
#include "model/json_file.h"
#include "model/layer_quantizer.h"
#include "model/pruned_checkpoint.h"
#include "quant/pruning.h"

namespace protean {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

// Zeros two of four weights of each matrix of a layer.
KeptWeights prune_weights(LayerTensors& layer, LayerStatistics& statistics) {
  KeptWeights kept;
  for (const TensorRole role : kLayerMatrices) {
    std::vector<float>& weights = layer.tensor(role);
    prune_two_of_four(weights, layer.width(role), input_sizes(statistics.of(input_of(role))));
    std::vector<bool>& mask = kept.masks.emplace_back(weights.size());
    std::transform(weights.begin(), weights.end(), mask.begin(),
                   [](float weight) { return weight != 0.0F; });
  }
  return kept;
}

std::vector<int> every(int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    all[static_cast<std::size_t>(i)] = i;
  }
  return all;
}

// Chooses the query heads of each KV head, or if each KV head has one query head, the heads.
void keep_heads(const ModelSpec& spec, const ModelSpec& pruned,
                const std::vector<double>& importance, KeptWeights& kept) {
  const int kv_heads = spec.attention.kv_heads;
  if (pruned.attention.kv_heads < kv_heads) {
    kept.heads = kept.kv_heads = largest(importance, pruned.attention.kv_heads);
    return;
  }
  kept.kv_heads = every(kv_heads);
  const int queries = spec.attention.heads / kv_heads;
  const int stay = pruned.attention.heads / kv_heads;
  for (int kv = 0; kv < kv_heads; ++kv) {
    const auto of_kv =
        std::span(importance)
            .subspan(static_cast<std::size_t>(kv) * static_cast<std::size_t>(queries),
                     static_cast<std::size_t>(queries));
    for (const int query : largest(of_kv, stay)) {
      kept.heads.push_back(kv * queries + query);
    }
  }
}

// Zeros the columns of a matrix whose runs of `run` inputs do not stay, so that the layer computes
// what the smaller one will.
void zero_columns(LayerTensors& layer, TensorRole role, const std::vector<int>& stay, int run) {
  const std::int64_t width = layer.width(role);
  std::vector<bool> stays(static_cast<std::size_t>(width / run), false);
  for (const int index : stay) {
    stays[static_cast<std::size_t>(index)] = true;
  }
  std::vector<float>& weights = layer.tensor(role);
  for (std::size_t at = 0; at < weights.size(); ++at) {
    const std::int64_t column = static_cast<std::int64_t>(at) % width;
    weights[at] = stays[static_cast<std::size_t>(column / run)] ? weights[at] : 0.0F;
  }
}

// Chooses the heads and neurons of a layer.
KeptWeights prune_structure(LayerTensors& layer, LayerStatistics& statistics, const ModelSpec& spec,
                            const ModelSpec& pruned) {
  const int head_dim = spec.attention.head_dim;
  KeptWeights kept;
  keep_heads(spec, pruned,
             run_importance(layer.tensor(TensorRole::kAttentionOutput),
                            statistics.of(LayerInput::kAttentionOutput), head_dim),
             kept);
  kept.neurons =
      largest(run_importance(layer.tensor(TensorRole::kDown), statistics.of(LayerInput::kDown), 1),
              pruned.ffn);
  zero_columns(layer, TensorRole::kAttentionOutput, kept.heads, head_dim);
  zero_columns(layer, TensorRole::kDown, kept.neurons, 1);
  return kept;
}

Result<std::vector<KeptWeights>> choose_weights(
    cpu::Team& team, const PruneJob& job, const Checkpoint& checkpoint,
    const std::function<void(std::int64_t, std::int64_t)>& progress) {
  auto calibration = Calibration::create(team, checkpoint, job.sequences);
  if (!calibration) {
    return calibration.error();
  }
  const ModelSpec& spec = checkpoint.spec();
  const ModelSpec pruned = pruned_spec(spec, job.pruning);
  std::vector<KeptWeights> kept;
  for (int layer = 0; layer < spec.layers; ++layer) {
    LayerTensors tensors(checkpoint, layer);
    auto statistics = calibration->observe(tensors);
    if (!statistics) {
      return statistics.error();
    }
    kept.push_back(job.pruning.kind == PruningKind::kTwoOfFour
                       ? prune_weights(tensors, *statistics)
                       : prune_structure(tensors, *statistics, spec, pruned));
    if (layer + 1 < spec.layers) {
      if (const Status advanced = calibration->advance(tensors); !advanced) {
        return advanced.error();
      }
    }
    progress(layer + 1, spec.layers);
  }
  return kept;
}

Status write_config(const PruneJob& job, const Checkpoint& pruned) {
  const ModelSpec& spec = pruned.spec();
  std::error_code unknown;
  Result<json::object> config = fs::is_directory(job.source, unknown)
                                    ? read_json_file(job.source / "config.json")
                                    : hf_config_of(spec, pruned.generation());
  if (!config) {
    return config.error();
  }
  if (job.pruning.kind == PruningKind::kTwoOfFour) {
    (*config)["sparsity_config"] = {{"format", "dense"}, {"sparsity_structure", "2:4"}};
  } else {
    (*config)["intermediate_size"] = spec.ffn;
    (*config)["num_attention_heads"] = spec.attention.heads;
    (*config)["num_key_value_heads"] = spec.attention.kv_heads;
    (*config)["head_dim"] = spec.attention.head_dim;
  }
  const fs::path path = job.target / "config.json";
  std::ofstream file(path, std::ios::binary);
  file << json::serialize(*config) << "\n";
  file.close();
  return file ? Status() : make_error(ErrorCode::kInternal, "{} cannot be written", path.string());
}

// Returns true if the family's files hold each tensor by itself and as it is.
bool is_plain(const TensorLayout& layout) {
  const auto name = [&](TensorRole role) { return layout.names[static_cast<std::size_t>(role)]; };
  return !layout.inputs_first && !layout.grouped_qkv && !layout.norms_less_one &&
         name(TensorRole::kQuery) != name(TensorRole::kKey) &&
         name(TensorRole::kGate) != name(TensorRole::kUp) &&
         name(TensorRole::kAttentionNorm) != name(TensorRole::kMlpNorm);
}

}  // namespace

Status write_pruned_model(cpu::Team& team, const PruneJob& job,
                          const std::function<void(std::int64_t, std::int64_t)>& progress) {
  auto opened = open_checkpoint(job.source);
  if (!opened) {
    return opened.error();
  }
  const std::shared_ptr<const Checkpoint> checkpoint = in_half_split_order(*std::move(opened));
  if (checkpoint->spec().stored.precision != Precision::kBf16) {
    return make_error(ErrorCode::kUnsupported,
                      "{} is {} already: prune the original model, or its errors add up",
                      job.source.string(),
                      checkpoint->spec().stored.precision.quantised() ? "quantised" : "pruned");
  }
  const ArchitectureRow& row = architecture_of(checkpoint->spec());
  if (!is_plain(*row.hf_tensors)) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: models of the family {} fuse or transform tensors, which protean prune "
                      "cannot write yet: quantise the model instead",
                      job.source.string(), row.name);
  }
  auto kept = choose_weights(team, job, *checkpoint, progress);
  if (!kept) {
    return kept.error();
  }
  const PrunedCheckpoint pruned(checkpoint, job.pruning, *std::move(kept));
  if (Status written = write_config(job, pruned); !written) {
    return written;
  }
  return write_safetensors(pruned, architecture_of(pruned.spec()).hf_tensors->names,
                           job.target / "model.safetensors", [](std::int64_t, std::int64_t) {});
}

}  // namespace protean
