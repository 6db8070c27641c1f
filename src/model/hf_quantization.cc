#include "model/hf_quantization.h"

#include "model/quote.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::int64_t kMostInputs = 1 << 24;  // most inputs that may share a scale

void read_awq(ConfigFields& fields, WeightQuantization& quantization) {
  quantization.packing = CodePacking::kAwq;
  const std::string version = fields.text("version", "gemm");
  if ((version != "gemm" && version != "GEMM") || !fields.boolean("zero_point", true)) {
    fields.fail(ErrorCode::kUnsupported,
                "AWQ weights of version {} {} zero points are not supported: only \"gemm\" with "
                "zero points is",
                quote(version), fields.boolean("zero_point", true) ? "with" : "without");
  }
}

void read_gptq(ConfigFields& fields, WeightQuantization& quantization) {
  quantization.packing = CodePacking::kGptq;
  const std::string format = fields.text("checkpoint_format", "gptq");
  quantization.zeros_less_one = format != "gptq_v2";
  if (format != "gptq" && format != "gptq_v2") {
    fields.fail(ErrorCode::kUnsupported,
                "GPTQ weights in format {} are not supported: only \"gptq\" and \"gptq_v2\" are",
                quote(format));
  }
}

// Reads a block of weights that share a scale, [rows, inputs].
void read_block(ConfigFields& fields, const char* key, WeightQuantization& quantization) {
  const std::vector<std::int64_t> block = fields.integers(key);
  if (block.size() != 2 || block[0] < 1 || block[1] < 1 || block[1] > kMostInputs ||
      block[0] > kMostInputs) {
    fields.fail(ErrorCode::kInvalidArgument, "{} must be two numbers above 0, rows and inputs",
                quote(key));
    return;
  }
  quantization.row_block = block[0];
  quantization.group = block[1];
}

// Reads "fp8": blocks of weights have a scale, or each matrix has one.
void read_fp8(ConfigFields& fields, WeightQuantization& quantization) {
  quantization = {.packing = CodePacking::kFloat8, .bits = 8, .group = 0, .row_block = 0};
  const std::string format = fields.text("fmt", "e4m3");
  if (format != "e4m3") {
    fields.fail(ErrorCode::kUnsupported,
                "FP8 weights of format {} are not supported: only \"e4m3\" is", quote(format));
  }
  if (fields.has("weight_block_size")) {
    read_block(fields, "weight_block_size", quantization);
  }
}

// Reads the strategy by which the weights of compressed-tensors share scales.
void read_strategy(ConfigFields& weights, WeightQuantization& quantization) {
  const std::string strategy = weights.text("strategy", "tensor");
  quantization.group = 0;
  quantization.row_block = strategy == "tensor" ? 0 : 1;
  if (strategy == "group") {
    const std::vector<std::int64_t> group = weights.integers("group_size");
    quantization.group = group.size() == 1 ? group.front() : 0;
    if (quantization.group < 1 || quantization.group > kMostInputs) {
      weights.fail(ErrorCode::kInvalidArgument, "\"group_size\" must be one number above 0");
    }
  } else if (strategy == "block") {
    read_block(weights, "block_structure", quantization);
  } else if (strategy != "tensor" && strategy != "channel") {
    weights.fail(ErrorCode::kUnsupported,
                 "the strategy {} is not supported: only tensor, channel, group and block are",
                 quote(strategy));
  }
}

void read_weights_scheme(ConfigFields& weights, const std::string& format,
                         WeightQuantization& quantization) {
  const std::string type = weights.text("type", "int");
  quantization.bits = weights.required_integer("num_bits");
  quantization.packing = format == "pack-quantized" ? CodePacking::kRows
                         : type == "float"          ? CodePacking::kFloat8
                                                    : CodePacking::kSigned;
  const bool packed = quantization.packing == CodePacking::kRows;
  const bool known = packed ? type == "int" && (quantization.bits == 4 || quantization.bits == 8)
                            : quantization.bits == 8;
  if (!known) {
    weights.fail(ErrorCode::kUnsupported,
                 "weights of type {} with {} bits in format {} are not supported: int with 4 or 8 "
                 "bits, and float with 8, are",
                 quote(type), quantization.bits, quote(format));
  }
  if (!packed && !weights.boolean("symmetric", true)) {
    weights.fail(
        ErrorCode::kUnsupported,
        "weights with zero points in format {} are not supported: only pack-quantized ones "
        "are",
        quote(format));
  }
  read_strategy(weights, quantization);
}

// Reads "compressed-tensors", if all its groups of modules store weights alike.
void read_compressed_tensors(ConfigFields& fields, const std::string& file,
                             WeightQuantization& quantization) {
  const std::string format = fields.text("format", "unnamed");
  if (format != "pack-quantized" && format != "int-quantized" && format != "float-quantized" &&
      format != "naive-quantized") {
    fields.fail(ErrorCode::kUnsupported,
                "compressed-tensors in format {} are not supported: pack-quantized, int-quantized, "
                "float-quantized and naive-quantized are",
                quote(format));
    return;
  }
  const json::object* groups = fields.object("config_groups");
  if (groups == nullptr || groups->size() != 1 || !groups->begin()->value().is_object()) {
    fields.fail(ErrorCode::kUnsupported,
                "compressed-tensors with {} groups of modules are not supported: one is",
                groups == nullptr ? 0 : groups->size());
    return;
  }
  ConfigFields group(groups->begin()->value().get_object(), file,
                     "quantization_config.config_groups.");
  if (const json::object* scheme = group.object("weights")) {
    ConfigFields weights(*scheme, file, "quantization_config.config_groups.weights.");
    read_weights_scheme(weights, format, quantization);
    fields.require(weights.status());
  } else {
    group.fail(ErrorCode::kCorrupt, "\"weights\" is missing");
  }
  fields.require(group.status());
}

}  // namespace

std::optional<WeightQuantization> read_quantization(ConfigFields& config, const std::string& file) {
  const json::object* object = config.object("quantization_config");
  if (object == nullptr) {
    return std::nullopt;
  }
  ConfigFields fields(*object, file, "quantization_config.");
  WeightQuantization quantization;
  const std::string method = fields.text("quant_method", "unnamed");
  if (method == "awq") {
    read_awq(fields, quantization);
  } else if (method == "gptq") {
    read_gptq(fields, quantization);
  } else if (method == "fp8") {
    read_fp8(fields, quantization);
  } else if (method == "compressed-tensors") {
    read_compressed_tensors(fields, file, quantization);
  } else {
    fields.fail(
        ErrorCode::kUnsupported,
        "weights quantised by {} are not supported: use an AWQ, GPTQ, FP8 or "
        "compressed-tensors checkpoint, the model's original F32, F16 or BF16 one or a GGUF file",
        fields.has("quant_method") ? quote(method) : method);
  }
  if (quantization.row_after_row()) {
    config.require(fields.status());
    return quantization;
  }
  quantization.bits = fields.required_integer("bits");
  const std::vector<std::int64_t> group = fields.integers("group_size");
  quantization.group = group.empty() || group.front() == -1 ? 0 : group.front();
  const bool known = quantization.bits == 2 || quantization.bits == 3 || quantization.bits == 4 ||
                     quantization.bits == 8;
  if (!known || (quantization.packing == CodePacking::kAwq && quantization.bits != 4)) {
    fields.fail(ErrorCode::kUnsupported,
                "{} bits are not supported: AWQ weights have 4, GPTQ weights 2, 3, 4 or 8",
                quantization.bits);
  }
  if (group.size() > 1 || quantization.group < 0 || quantization.group > kMostInputs) {
    fields.fail(ErrorCode::kInvalidArgument,
                "\"group_size\" must be one number above 0, or -1 for whole rows");
  }
  config.require(fields.status());
  return quantization;
}

}  // namespace protean
