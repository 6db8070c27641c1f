#include "model/quantized_model.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <fstream>
#include <string>
#include <utility>

#include "base/check.h"
#include "device/cpu/bf16.h"
#include "model/half_split_checkpoint.h"
#include "model/hf_config_writer.h"
#include "model/json_file.h"
#include "model/safetensors_writer.h"

namespace protean {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr std::int64_t kChunkElements =
    4 << 20;  // elements of a matrix outside the layers that are read and written at once

json::object quantization_config(const QuantizeOptions& options) {
  const WeightQuantization how = packing_of(options.format);
  if (how.packing == CodePacking::kAwq) {
    return {{"quant_method", "awq"}, {"bits", how.bits},  {"group_size", how.group},
            {"zero_point", true},    {"version", "gemm"}, {"modules_to_not_convert", nullptr}};
  }
  return {{"quant_method", "gptq"},
          {"bits", how.bits},
          {"group_size", how.group},
          {"desc_act", false},
          {"static_groups", options.gptq.activation_order},
          {"sym", options.format.symmetric},
          {"damp_percent", options.gptq.damping},
          {"lm_head", false},
          {"true_sequential", false},
          {"checkpoint_format", "gptq"}};
}

bool is_gguf(const QuantizeJob& job) {
  std::error_code unknown;
  return !fs::is_directory(job.source, unknown);
}

Status write_config(const QuantizeJob& job, const Checkpoint& checkpoint) {
  Result<json::object> config = is_gguf(job)
                                    ? hf_config_of(checkpoint.spec(), checkpoint.generation())
                                    : read_json_file(job.source / "config.json");
  if (!config) {
    return config.error();
  }
  if (config->contains("quantization_config") || checkpoint.spec().stored.precision.quantised()) {
    return make_error(ErrorCode::kUnsupported,
                      "{} is quantised already: quantise the original model, or its errors add up",
                      job.source.string());
  }
  (*config)["quantization_config"] = quantization_config(job.options);
  const fs::path path = job.target / "config.json";
  std::ofstream file(path, std::ios::binary);
  file << json::serialize(*config) << "\n";
  file.close();
  return file ? Status() : make_error(ErrorCode::kInternal, "{} cannot be written", path.string());
}

bool is_matrix(TensorRole role) {
  return std::find(kLayerMatrices.begin(), kLayerMatrices.end(), role) != kLayerMatrices.end();
}

bool exact_in_bf16(const Checkpoint& checkpoint, const NeededTensor& need) {
  std::vector<float> values(static_cast<std::size_t>(need.rows));
  checkpoint.read_rows(need.role, need.layer, 0, 1, values.data());
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return cpu::float_from(cpu::bf16_from(value)) == value; });
}

// Plans all tensors in the order in which they are written: those outside the layers, then each
// layer's vectors and matrices.
class ModelWriter {
 public:
  static Result<ModelWriter> create(const Checkpoint& checkpoint, const TensorNames& names,
                                    const QuantizeJob& job);

  Status write_outer(const Checkpoint& checkpoint);
  Status write_layer(int layer, const LayerTensors& tensors, const QuantizedLayer& quantized);
  Status finish() { return writer_.finish(); }

 private:
  explicit ModelWriter(SafetensorsWriter writer) : writer_(std::move(writer)) {}

  Status write_floats(std::span<const float> values, const std::string& type);

  SafetensorsWriter writer_;
  std::vector<NeededTensor> order_;
  std::vector<std::string> types_;  // types of order_; empty for packed matrices
  WeightQuantization how_;
};

std::vector<PlannedTensor> plan_packed(const std::string& name, const NeededTensor& need,
                                       const WeightQuantization& how, const PackedShape& shape) {
  const std::string stem = name.substr(0, name.rfind('.'));
  const std::int64_t groups = how.groups(need.columns);
  std::vector<PlannedTensor> parts = {
      {stem + ".qweight", "I32", {shape.code_rows, shape.code_columns}},
      {stem + ".qzeros", "I32", {groups, shape.zero_columns}},
      {stem + ".scales", "F16", {groups, need.rows}}};
  if (how.packing == CodePacking::kGptq) {
    parts.push_back({stem + ".g_idx", "I32", {need.columns}});
  }
  return parts;
}

Result<ModelWriter> ModelWriter::create(const Checkpoint& checkpoint, const TensorNames& names,
                                        const QuantizeJob& job) {
  const WeightQuantization how = packing_of(job.options.format);
  const bool biases_change = scales_inputs(job.options.method);
  std::vector<PlannedTensor> plan;
  std::vector<NeededTensor> order;
  std::vector<std::string> types;
  for (const NeededTensor& need : needed_tensors(checkpoint.spec())) {
    const std::string name = tensor_name(names, need.role, need.layer);
    std::string type;
    if (is_matrix(need.role)) {
      const auto shape = packed_shape(how, need.rows, need.columns);
      if (!shape) {
        return make_error(shape.error().code, "tensor {}: {}", name, shape.error().message);
      }
      for (PlannedTensor& part : plan_packed(name, need, how, *shape)) {
        plan.push_back(std::move(part));
      }
    } else {
      const bool exact = need.columns != 0 || exact_in_bf16(checkpoint, need);
      type = exact && !(biases_change && need.role == TensorRole::kValueBias) ? "BF16" : "F32";
      std::vector<std::int64_t> shape = {need.rows};
      if (need.columns != 0) {
        shape.push_back(need.columns);
      }
      plan.push_back({name, type, std::move(shape)});
    }
    order.push_back(need);
    types.push_back(std::move(type));
  }
  Result<SafetensorsWriter> file =
      SafetensorsWriter::create(job.target / "model.safetensors", plan);
  if (!file) {
    return file.error();
  }
  ModelWriter writer(*std::move(file));
  writer.order_ = std::move(order);
  writer.types_ = std::move(types);
  writer.how_ = how;
  return writer;
}

Status ModelWriter::write_floats(std::span<const float> values, const std::string& type) {
  if (type == "F32") {
    return writer_.write(std::as_bytes(values));
  }
  std::vector<std::uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), cpu::bf16_from);
  return writer_.write(std::as_bytes(std::span(halves)));
}

// needed_tensors() names the tensors outside the layers first.
Status ModelWriter::write_outer(const Checkpoint& checkpoint) {
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const NeededTensor& need = order_[i];
    if (!is_outer(need.role)) {
      break;
    }
    const std::int64_t rows = need.columns == 0 ? 1 : need.rows;
    const std::int64_t width = need.columns == 0 ? need.rows : need.columns;
    const std::int64_t some = std::max<std::int64_t>(1, kChunkElements / width);
    std::vector<float> values;
    for (std::int64_t row = 0; row < rows; row += some) {
      const std::int64_t count = std::min(some, rows - row);
      values.resize(static_cast<std::size_t>(count * width));
      checkpoint.read_rows(need.role, 0, row, count, values.data());
      if (Status written = write_floats(values, types_[i]); !written) {
        return written;
      }
    }
    checkpoint.release(need.role, 0);
  }
  return {};
}

Status ModelWriter::write_layer(int layer, const LayerTensors& tensors,
                                const QuantizedLayer& quantized) {
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const NeededTensor& need = order_[i];
    if (need.layer != layer || is_outer(need.role)) {
      continue;
    }
    if (!is_matrix(need.role)) {
      if (Status written = write_floats(tensors.tensor(need.role), types_[i]); !written) {
        return written;
      }
      continue;
    }
    const auto* place = std::find(kLayerMatrices.begin(), kLayerMatrices.end(), need.role);
    const PackedBytes packed =
        pack_codes(quantized[static_cast<std::size_t>(place - kLayerMatrices.begin())], how_);
    std::vector<std::int32_t> group_index;
    if (how_.packing == CodePacking::kGptq) {
      for (std::int64_t input = 0; input < need.columns; ++input) {
        group_index.push_back(static_cast<std::int32_t>(input / how_.group));
      }
    }
    for (const auto bytes :
         {std::as_bytes(std::span(packed.codes)), std::as_bytes(std::span(packed.zeros)),
          std::as_bytes(std::span(packed.scales)), std::as_bytes(std::span(group_index))}) {
      if (Status written = writer_.write(bytes); !written) {
        return written;
      }
    }
  }
  return {};
}

Status write_layers(cpu::Team& team, const QuantizeJob& job, const Checkpoint& checkpoint,
                    ModelWriter& writer,
                    const std::function<void(std::int64_t, std::int64_t)>& progress) {
  std::optional<Calibration> calibration;
  if (job.options.method != QuantMethod::kRoundToNearest) {
    auto created = Calibration::create(team, checkpoint, job.sequences);
    if (!created) {
      return created.error();
    }
    calibration.emplace(*std::move(created));
  }
  const int layers = checkpoint.spec().layers;
  for (int layer = 0; layer < layers; ++layer) {
    LayerTensors tensors(checkpoint, layer);
    std::optional<LayerStatistics> statistics;
    if (calibration) {
      auto observed = calibration->observe(tensors);
      if (!observed) {
        return observed.error();
      }
      statistics.emplace(*std::move(observed));
    }
    const auto quantized =
        quantize_layer(team, tensors, statistics ? &*statistics : nullptr, job.options);
    if (!quantized) {
      return make_error(quantized.error().code, "layer {}: {}", layer, quantized.error().message);
    }
    statistics.reset();
    if (Status written = writer.write_layer(layer, tensors, *quantized); !written) {
      return written;
    }
    if (calibration && layer + 1 < layers) {
      if (Status advanced = calibration->advance(tensors); !advanced) {
        return advanced;
      }
    }
    progress(layer + 1, layers);
  }
  return writer.finish();
}

}  // namespace

WeightQuantization packing_of(const QuantFormat& format) {
  const bool awq = format.bits == 4 && !format.symmetric;
  return {.packing = awq ? CodePacking::kAwq : CodePacking::kGptq,
          .bits = format.bits,
          .group = format.group,
          .zeros_less_one = !awq};
}

std::string unusual_packing(const ModelSpec& spec, const QuantFormat& format) {
  for (const NeededTensor& need : needed_tensors(spec)) {
    if (is_matrix(need.role) && need.columns % format.group != 0) {
      return fmt::format(
          "rows of {} weights are no whole groups of {}: the last group is shorter, "
          "which other programs may not read",
          need.columns, format.group);
    }
  }
  return {};
}

Status write_quantized_model(cpu::Team& team, const QuantizeJob& job,
                             const std::function<void(std::int64_t, std::int64_t)>& progress) {
  auto opened = open_checkpoint(job.source);
  if (!opened) {
    return opened.error();
  }
  const ArchitectureRow& row = architecture_of((*opened)->spec());
  if (!row.writable) {
    return make_error(ErrorCode::kUnsupported,
                      "{} is of the family {}, whose models cannot be written quantised: serve the "
                      "original with --dtype w8 or w4, which rounds it while it is loaded",
                      job.source.string(), row.name);
  }
  const std::unique_ptr<Checkpoint> checkpoint = in_half_split_order(*std::move(opened));
  if (Status written = write_config(job, *checkpoint); !written) {
    return written;
  }
  auto writer = ModelWriter::create(*checkpoint, row.hf_tensors->names, job);
  if (!writer) {
    return writer.error();
  }
  if (Status written = writer->write_outer(*checkpoint); !written) {
    return written;
  }
  return write_layers(team, job, *checkpoint, *writer, progress);
}

}  // namespace protean
