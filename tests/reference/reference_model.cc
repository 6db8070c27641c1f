#include "tests/reference/reference_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "contract/form.h"
#include "model/weights.h"
#include "quant/round_to_nearest.h"

namespace protean {
namespace {

double nearest_bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t low = bits & 0xFFFFU;
  bits &= 0xFFFF0000U;
  const bool odd = (bits & 0x10000U) != 0;
  if (low > 0x8000U || (low == 0x8000U && odd)) {
    bits += 0x10000U;
  }
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

// Returns the values that rows have once they are stored at a precision.
std::vector<double> stored(std::vector<float> rows, int inputs, Precision precision, int group) {
  if (precision.quantised()) {
    const cpu::WeightFormat format = weight_format(precision, group);
    const QuantizedMatrix rounded =
        round_to_nearest(rows, inputs, {format.bits(), format.group, format.symmetric});
    dequantize_rows(rounded.view(), 0, rounded.rows, rows.data());
  }
  std::vector<double> values(rows.begin(), rows.end());
  if (precision == Precision::kBf16) {
    std::transform(rows.begin(), rows.end(), values.begin(), nearest_bf16);
  }
  return values;
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x * sigmoid(x);
    case Activation::kGelu:  // x times the normal distribution's function
      return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return 0.5 * x *
             (1.0 +
              std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * std::pow(x, 3.0))));
    case Activation::kRelu:
      return x > 0.0 ? x : 0.0;
  }
  return x;
}

double capped(double x, double cap) {
  return cap > 0.0 ? cap * std::tanh(x / cap) : x;
}

}  // namespace

ReferenceModel::ReferenceModel(const Checkpoint& checkpoint, Precision precision, int positions)
    : spec_(checkpoint.spec()), positions_(positions) {
  const auto matrix = [&](TensorRole role, int layer, int outputs, int inputs) {
    std::vector<float> values(static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs));
    checkpoint.read_rows(role, layer, 0, outputs, values.data());
    const bool vocabulary = role == TensorRole::kEmbedding || role == TensorRole::kOutput;
    return Matrix{outputs, inputs,
                  stored(std::move(values), inputs,
                         vocabulary ? default_embeddings_precision(precision) : precision,
                         spec_.stored.group)};
  };
  const auto vector = [&](TensorRole role, int layer, int size) {
    std::vector<float> values(static_cast<std::size_t>(size));
    checkpoint.read_rows(role, layer, 0, 1, values.data());
    return Vector(values.begin(), values.end());
  };
  const int hidden = spec_.hidden;
  embedding_ = matrix(TensorRole::kEmbedding, 0, spec_.vocab, hidden);
  output_ =
      spec_.tied_embeddings ? embedding_ : matrix(TensorRole::kOutput, 0, spec_.vocab, hidden);
  final_norm_ = vector(TensorRole::kFinalNorm, 0, hidden);
  if (spec_.norms.bias) {
    final_norm_bias_ = vector(TensorRole::kFinalNormBias, 0, hidden);
  }
  if (spec_.output_bias) {
    output_bias_ = vector(TensorRole::kOutputBias, 0, spec_.vocab);
  }
  if (spec_.learned_positions) {
    std::vector<float> rows(static_cast<std::size_t>(spec_.max_context * hidden));
    checkpoint.read_rows(TensorRole::kPositions, 0, 0, spec_.max_context, rows.data());
    position_rows_.assign(rows.begin(), rows.end());
  }
  for (int i = 0; i < spec_.layers; ++i) {
    layers_.push_back(read_layer(i, matrix, vector));
  }
}

ReferenceModel::Layer ReferenceModel::read_layer(int i, const ReadMatrix& matrix,
                                                 const ReadVector& vector) const {
  const AttentionSpec& a = spec_.attention;
  const NormSpec& norms = spec_.norms;
  const int hidden = spec_.hidden;
  const int q = a.heads * a.head_dim;
  const int kv = a.kv_heads * a.head_dim;
  const auto vector_if = [&](bool has, TensorRole role, int size) {
    return has ? vector(role, i, size) : Vector();
  };
  Layer layer;
  layer.attention_norms.before = vector_if(norms.before, TensorRole::kAttentionNorm, hidden);
  layer.attention_norms.bias =
      vector_if(norms.before && norms.bias, TensorRole::kAttentionNormBias, hidden);
  layer.attention_norms.after = vector_if(norms.after, TensorRole::kAttentionPostNorm, hidden);
  layer.query = matrix(TensorRole::kQuery, i, q, hidden);
  layer.key = matrix(TensorRole::kKey, i, kv, hidden);
  layer.value = matrix(TensorRole::kValue, i, kv, hidden);
  layer.output = matrix(TensorRole::kAttentionOutput, i, hidden, q);
  layer.query_bias = vector_if(a.qkv_bias, TensorRole::kQueryBias, q);
  layer.key_bias = vector_if(a.qkv_bias, TensorRole::kKeyBias, kv);
  layer.value_bias = vector_if(a.qkv_bias, TensorRole::kValueBias, kv);
  layer.output_bias = vector_if(a.output_bias, TensorRole::kAttentionOutputBias, hidden);
  layer.query_norm =
      vector_if(a.qk_norm, TensorRole::kQueryNorm, a.qk_norm_over_heads ? q : a.head_dim);
  layer.key_norm =
      vector_if(a.qk_norm, TensorRole::kKeyNorm, a.qk_norm_over_heads ? kv : a.head_dim);
  layer.mlp_norms.before = vector_if(norms.before, TensorRole::kMlpNorm, hidden);
  layer.mlp_norms.bias = vector_if(norms.before && norms.bias, TensorRole::kMlpNormBias, hidden);
  layer.mlp_norms.after = vector_if(norms.after, TensorRole::kMlpPostNorm, hidden);
  if (spec_.mlp.gated) {
    layer.gate = matrix(TensorRole::kGate, i, spec_.ffn, hidden);
  }
  layer.up = matrix(TensorRole::kUp, i, spec_.ffn, hidden);
  layer.down = matrix(TensorRole::kDown, i, hidden, spec_.ffn);
  layer.gate_bias = vector_if(spec_.mlp.bias && spec_.mlp.gated, TensorRole::kGateBias, spec_.ffn);
  layer.up_bias = vector_if(spec_.mlp.bias, TensorRole::kUpBias, spec_.ffn);
  layer.down_bias = vector_if(spec_.mlp.bias, TensorRole::kDownBias, hidden);
  return layer;
}

ReferenceModel::Vector ReferenceModel::apply(const Matrix& matrix, const Vector& x,
                                             const Vector& bias) {
  Vector y(static_cast<std::size_t>(matrix.outputs));
  const double* weight = matrix.values.data();
  for (std::size_t o = 0; o < y.size(); ++o) {
    double sum = bias.empty() ? 0.0 : bias[o];
    for (const double value : x) {
      sum += *weight++ * value;
    }
    y[o] = sum;
  }
  return y;
}

// RMS norm, or LayerNorm if the model has it.
ReferenceModel::Vector ReferenceModel::norm(const Vector& x, const Vector& weight,
                                            const Vector& bias) const {
  const auto size = static_cast<double>(x.size());
  const double mean =
      spec_.norms.layer_norm ? std::accumulate(x.begin(), x.end(), 0.0) / size : 0.0;
  double squares = 0.0;
  for (const double value : x) {
    squares += (value - mean) * (value - mean);
  }
  const double root = std::sqrt(squares / size + double{spec_.norm_eps});
  Vector y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - mean) / root * weight[i] + (bias.empty() ? 0.0 : bias[i]);
  }
  return y;
}

// Returns the radians per position of a rotated pair. States llama3 scaling in wavelengths, as
// published.
double ReferenceModel::frequency(const RopeSpec& rope, int pair) const {
  const int dim = rope.rotated > 0 ? rope.rotated : spec_.attention.head_dim;
  const double pi = std::acos(-1.0);
  const double exponent = 2.0 * pair / dim;
  double frequency = 1.0 / std::pow(rope.theta, exponent);
  if (rope.scaling == RopeScaling::kLinear) {
    frequency /= rope.factor;
  }
  if (rope.scaling == RopeScaling::kLlama3) {
    const double wavelength = 2.0 * pi / frequency;
    const double longest_kept = rope.original_context / rope.high_freq_factor;
    const double longest_mixed = rope.original_context / rope.low_freq_factor;
    if (wavelength > longest_mixed) {
      frequency /= rope.factor;
    } else if (wavelength >= longest_kept) {
      const double smooth = (rope.original_context / wavelength - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
      frequency = (1.0 - smooth) * (frequency / rope.factor) + smooth * frequency;
    }
  }
  if (rope.scaling == RopeScaling::kYarn) {
    // find_correction_range and linear_ramp_mask of YaRN's published code.
    const auto correction_dim = [&](double rotations) {
      return dim * std::log(rope.original_context / (rotations * 2.0 * pi)) /
             (2.0 * std::log(rope.theta));
    };
    const double low = std::max(0.0, std::floor(correction_dim(rope.beta_fast)));
    const double high = std::min(dim - 1.0, std::ceil(correction_dim(rope.beta_slow)));
    double ramp = (pair - low) / (low == high ? 0.001 : high - low);
    ramp = std::min(1.0, std::max(0.0, ramp));
    const double kept = 1.0 - ramp;
    frequency = frequency / rope.factor * (1.0 - kept) + frequency * kept;
  }
  const bool is_long = rope.scaling == RopeScaling::kLong && positions_ > rope.original_context;
  const std::vector<float>& divisors = is_long ? rope.long_divisors : rope.divisors;
  if (!divisors.empty()) {
    frequency /= double{divisors[static_cast<std::size_t>(pair)]};
  }
  return frequency;
}

void ReferenceModel::rotate(Vector& heads, int layer, int position) const {
  const AttentionSpec& attention = spec_.attention;
  if (!attention.rotated.empty() && !attention.rotated[static_cast<std::size_t>(layer)]) {
    return;
  }
  const bool own = spec_.windowed_rope && has_window(layer);
  const RopeSpec& rope = own ? *spec_.windowed_rope : spec_.rope;
  const int dim = attention.head_dim;
  const int rotated = rope.rotated > 0 ? rope.rotated : dim;
  const bool adjacent = rope.pairing == RopePairing::kAdjacent;
  for (std::size_t head = 0; head < heads.size(); head += static_cast<std::size_t>(dim)) {
    for (int pair = 0; pair < rotated / 2; ++pair) {
      const int first = adjacent ? 2 * pair : pair;
      const int second = adjacent ? 2 * pair + 1 : pair + rotated / 2;
      double& a = heads[head + static_cast<std::size_t>(first)];
      double& b = heads[head + static_cast<std::size_t>(second)];
      const double angle = position * frequency(rope, pair);
      const double turned_a = rope.magnitude * (a * std::cos(angle) - b * std::sin(angle));
      const double turned_b = rope.magnitude * (a * std::sin(angle) + b * std::cos(angle));
      a = turned_a;
      b = turned_b;
    }
  }
}

bool ReferenceModel::has_window(int layer) const {
  const std::vector<bool>& windowed = spec_.attention.windowed;
  return spec_.attention.sliding_window > 0 &&
         (windowed.empty() || windowed[static_cast<std::size_t>(layer)]);
}

// Projects into heads, and normalises each head, or all together, if the model does.
ReferenceModel::Vector ReferenceModel::project(const Matrix& matrix, const Vector& bias,
                                               const Vector& head_norm, const Vector& x) const {
  Vector y = apply(matrix, x, bias);
  if (!head_norm.empty()) {
    const auto size = static_cast<std::ptrdiff_t>(head_norm.size());
    for (auto head = y.begin(); head != y.end(); head += size) {
      const Vector normed = norm(Vector(head, head + size), head_norm, {});
      std::copy(normed.begin(), normed.end(), head);
    }
  }
  return y;
}

// Returns the rows that a half reads.
std::vector<ReferenceModel::Vector> ReferenceModel::inputs(const std::vector<Vector>& residual,
                                                           const Vector& weight,
                                                           const Vector& bias) const {
  std::vector<Vector> rows = residual;
  for (Vector& row : rows) {
    row = spec_.norms.before ? norm(row, weight, bias) : row;
  }
  return rows;
}

void ReferenceModel::add(const std::vector<Vector>& outputs, const Vector& post_norm,
                         std::vector<Vector>& residual) const {
  for (std::size_t t = 0; t < residual.size(); ++t) {
    const Vector added = post_norm.empty() ? outputs[t] : norm(outputs[t], post_norm, {});
    for (std::size_t i = 0; i < added.size(); ++i) {
      residual[t][i] += double{spec_.multipliers.residual} * added[i];
    }
  }
}

std::vector<ReferenceModel::Vector> ReferenceModel::attend(const Layer& layer, int index,
                                                           const std::vector<Vector>& rows) const {
  const AttentionSpec& a = spec_.attention;
  const auto dim = static_cast<std::size_t>(a.head_dim);
  std::vector<Vector> q, k, v;
  for (std::size_t t = 0; t < rows.size(); ++t) {
    q.push_back(project(layer.query, layer.query_bias, layer.query_norm, rows[t]));
    k.push_back(project(layer.key, layer.key_bias, layer.key_norm, rows[t]));
    v.push_back(project(layer.value, layer.value_bias, {}, rows[t]));
    rotate(q.back(), index, static_cast<int>(t));
    rotate(k.back(), index, static_cast<int>(t));
  }
  const double scale = a.scale > 0.0F ? double{a.scale} : 1.0 / std::sqrt(static_cast<double>(dim));
  std::vector<Vector> outputs;
  for (std::size_t t = 0; t < rows.size(); ++t) {
    const std::size_t window =
        has_window(index) ? static_cast<std::size_t>(a.sliding_window) : t + 1;
    const std::size_t first = t + 1 > window ? t + 1 - window : 0;
    Vector mixed(q[t].size(), 0.0);
    for (std::size_t head = 0; head < static_cast<std::size_t>(a.heads); ++head) {
      const std::size_t kv_head = head / static_cast<std::size_t>(a.heads / a.kv_heads);
      Vector scores;
      for (std::size_t s = first; s <= t; ++s) {
        double dot = 0.0;
        for (std::size_t i = 0; i < dim; ++i) {
          dot += q[t][head * dim + i] * k[s][kv_head * dim + i];
        }
        scores.push_back(capped(dot * scale, a.score_cap));
      }
      const double most = *std::max_element(scores.begin(), scores.end());
      double total = 0.0;
      for (double& score : scores) {
        score = std::exp(score - most);
        total += score;
      }
      for (std::size_t s = first; s <= t; ++s) {
        for (std::size_t i = 0; i < dim; ++i) {
          mixed[head * dim + i] += scores[s - first] / total * v[s][kv_head * dim + i];
        }
      }
    }
    outputs.push_back(apply(layer.output, mixed, layer.output_bias));
  }
  return outputs;
}

std::vector<ReferenceModel::Vector> ReferenceModel::feed_forward(
    const Layer& layer, const std::vector<Vector>& rows) const {
  std::vector<Vector> outputs;
  for (const Vector& x : rows) {
    Vector inner = apply(layer.up, x, layer.up_bias);
    const Vector gate = spec_.mlp.gated ? apply(layer.gate, x, layer.gate_bias) : inner;
    for (std::size_t i = 0; i < inner.size(); ++i) {
      inner[i] = activated(spec_.mlp.activation, gate[i]) * (spec_.mlp.gated ? inner[i] : 1.0);
    }
    outputs.push_back(apply(layer.down, inner, layer.down_bias));
  }
  return outputs;
}

std::vector<std::vector<std::vector<double>>> ReferenceModel::streams(
    std::span<const TokenId> tokens) const {
  std::vector<Vector> residual;
  for (const TokenId token : tokens) {
    const auto begin = embedding_.values.begin() + std::ptrdiff_t{token} * spec_.hidden;
    Vector row(begin, begin + spec_.hidden);
    const std::size_t position = residual.size() * row.size();
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] *= double{spec_.multipliers.embedding};
      row[i] += spec_.learned_positions ? position_rows_[position + i] : 0.0;
    }
    residual.push_back(std::move(row));
  }
  std::vector<std::vector<Vector>> streams = {residual};
  for (std::size_t index = 0; index < layers_.size(); ++index) {
    const Layer& layer = layers_[index];
    const auto attention_rows =
        inputs(residual, layer.attention_norms.before, layer.attention_norms.bias);
    const auto parallel_rows = inputs(residual, layer.mlp_norms.before, layer.mlp_norms.bias);
    add(attend(layer, static_cast<int>(index), attention_rows), layer.attention_norms.after,
        residual);
    streams.push_back(residual);
    add(feed_forward(layer, spec_.parallel_halves
                                ? parallel_rows
                                : inputs(residual, layer.mlp_norms.before, layer.mlp_norms.bias)),
        layer.mlp_norms.after, residual);
    streams.push_back(residual);
  }
  return streams;
}

std::vector<std::vector<double>> ReferenceModel::hidden(std::span<const TokenId> tokens) const {
  std::vector<Vector> rows = streams(tokens).back();
  for (Vector& row : rows) {
    row = norm(row, final_norm_, final_norm_bias_);
  }
  return rows;
}

std::vector<std::vector<double>> ReferenceModel::logits(std::span<const TokenId> tokens) const {
  return logits_of(hidden(tokens));
}

std::vector<std::vector<double>> ReferenceModel::logits_of(
    std::vector<std::vector<double>> hidden) const {
  for (Vector& row : hidden) {
    row = apply(output_, row, output_bias_);
    for (double& logit : row) {
      logit = capped(logit * double{spec_.multipliers.logits}, spec_.multipliers.logit_cap);
    }
  }
  return hidden;
}

}  // namespace protean
