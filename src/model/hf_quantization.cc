#include "model/hf_quantization.h"

#include "model/quote.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::int64_t kMostInputs = 1 << 24;  // that share a scale

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
  } else {
    fields.fail(ErrorCode::kUnsupported,
                "weights quantised by {} are not supported: use an AWQ or GPTQ checkpoint, the "
                "model's original F32, F16 or BF16 one or a GGUF file",
                fields.has("quant_method") ? quote(method) : method);
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
