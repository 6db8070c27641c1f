#include "tests/reference/reference_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

}  // namespace

ReferenceModel::ReferenceModel(const Checkpoint& checkpoint, bool bf16_matrices)
    : spec_(checkpoint.spec()) {
  const auto matrix = [&](TensorRole role, int layer, int outputs, int inputs) {
    std::vector<float> values(static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs));
    checkpoint.read_rows(role, layer, 0, outputs, values.data());
    Matrix result{outputs, inputs, {}};
    for (const float value : values) {
      result.values.push_back(bf16_matrices ? nearest_bf16(value) : double{value});
    }
    return result;
  };
  const auto vector = [&](TensorRole role, int layer, int size) {
    std::vector<float> values(static_cast<std::size_t>(size));
    checkpoint.read_rows(role, layer, 0, 1, values.data());
    return Vector(values.begin(), values.end());
  };
  const AttentionSpec& a = spec_.attention;
  const int hidden = spec_.hidden;
  const int q = a.heads * a.head_dim;
  const int kv = a.kv_heads * a.head_dim;
  embedding_ = matrix(TensorRole::kEmbedding, 0, spec_.vocab, hidden);
  output_ =
      spec_.tied_embeddings ? embedding_ : matrix(TensorRole::kOutput, 0, spec_.vocab, hidden);
  final_norm_ = vector(TensorRole::kFinalNorm, 0, hidden);
  for (int i = 0; i < spec_.layers; ++i) {
    Layer layer;
    layer.attention_norm = vector(TensorRole::kAttentionNorm, i, hidden);
    layer.query = matrix(TensorRole::kQuery, i, q, hidden);
    layer.key = matrix(TensorRole::kKey, i, kv, hidden);
    layer.value = matrix(TensorRole::kValue, i, kv, hidden);
    layer.output = matrix(TensorRole::kAttentionOutput, i, hidden, q);
    if (a.qkv_bias) {
      layer.query_bias = vector(TensorRole::kQueryBias, i, q);
      layer.key_bias = vector(TensorRole::kKeyBias, i, kv);
      layer.value_bias = vector(TensorRole::kValueBias, i, kv);
    }
    if (a.output_bias) {
      layer.output_bias = vector(TensorRole::kAttentionOutputBias, i, hidden);
    }
    if (a.qk_norm) {
      layer.query_norm = vector(TensorRole::kQueryNorm, i, a.head_dim);
      layer.key_norm = vector(TensorRole::kKeyNorm, i, a.head_dim);
    }
    layer.mlp_norm = vector(TensorRole::kMlpNorm, i, hidden);
    layer.gate = matrix(TensorRole::kGate, i, spec_.ffn, hidden);
    layer.up = matrix(TensorRole::kUp, i, spec_.ffn, hidden);
    layer.down = matrix(TensorRole::kDown, i, hidden, spec_.ffn);
    layers_.push_back(std::move(layer));
  }
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

ReferenceModel::Vector ReferenceModel::norm(const Vector& x, const Vector& weight) const {
  double squares = 0.0;
  for (const double value : x) {
    squares += value * value;
  }
  const double root = std::sqrt(squares / static_cast<double>(x.size()) + double{spec_.norm_eps});
  Vector y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = x[i] / root * weight[i];
  }
  return y;
}

// Returns the radians per position of a rotated pair. States llama3 scaling in wavelengths, as
// published.
double ReferenceModel::frequency(int pair) const {
  const RopeSpec& rope = spec_.rope;
  const double exponent = 2.0 * pair / spec_.attention.head_dim;
  double frequency = 1.0 / std::pow(rope.theta, exponent);
  if (rope.scaling == RopeScaling::kLinear) {
    frequency /= rope.factor;
  }
  if (rope.scaling == RopeScaling::kLlama3) {
    const double wavelength = 2.0 * std::acos(-1.0) / frequency;
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
  if (!rope.divisors.empty()) {
    frequency /= double{rope.divisors[static_cast<std::size_t>(pair)]};
  }
  return frequency;
}

void ReferenceModel::rotate(Vector& heads, int position) const {
  const int dim = spec_.attention.head_dim;
  const bool adjacent = spec_.rope.pairing == RopePairing::kAdjacent;
  for (std::size_t head = 0; head < heads.size(); head += static_cast<std::size_t>(dim)) {
    for (int pair = 0; pair < dim / 2; ++pair) {
      const int first = adjacent ? 2 * pair : pair;
      const int second = adjacent ? 2 * pair + 1 : pair + dim / 2;
      double& a = heads[head + static_cast<std::size_t>(first)];
      double& b = heads[head + static_cast<std::size_t>(second)];
      const double angle = position * frequency(pair);
      const double turned_a = a * std::cos(angle) - b * std::sin(angle);
      const double turned_b = a * std::sin(angle) + b * std::cos(angle);
      a = turned_a;
      b = turned_b;
    }
  }
}

// Projects into heads, and normalises each head if the model does.
ReferenceModel::Vector ReferenceModel::project(const Matrix& matrix, const Vector& bias,
                                               const Vector& head_norm, const Vector& x) const {
  Vector y = apply(matrix, x, bias);
  if (!head_norm.empty()) {
    for (auto head = y.begin(); head != y.end(); head += spec_.attention.head_dim) {
      const Vector normed = norm(Vector(head, head + spec_.attention.head_dim), head_norm);
      std::copy(normed.begin(), normed.end(), head);
    }
  }
  return y;
}

void ReferenceModel::attend(const Layer& layer, int index, std::vector<Vector>& residual) const {
  const AttentionSpec& a = spec_.attention;
  const auto dim = static_cast<std::size_t>(a.head_dim);
  std::vector<Vector> q, k, v;
  for (std::size_t t = 0; t < residual.size(); ++t) {
    const Vector x = norm(residual[t], layer.attention_norm);
    q.push_back(project(layer.query, layer.query_bias, layer.query_norm, x));
    k.push_back(project(layer.key, layer.key_bias, layer.key_norm, x));
    v.push_back(project(layer.value, layer.value_bias, {}, x));
    rotate(q.back(), static_cast<int>(t));
    rotate(k.back(), static_cast<int>(t));
  }
  const bool windowed = a.sliding_window > 0 && index >= a.first_windowed_layer;
  for (std::size_t t = 0; t < residual.size(); ++t) {
    const std::size_t window = windowed ? static_cast<std::size_t>(a.sliding_window) : t + 1;
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
        scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
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
    const Vector added = apply(layer.output, mixed, layer.output_bias);
    std::transform(added.begin(), added.end(), residual[t].begin(), residual[t].begin(),
                   std::plus<>());
  }
}

void ReferenceModel::feed_forward(const Layer& layer, std::vector<Vector>& residual) const {
  for (Vector& row : residual) {
    const Vector x = norm(row, layer.mlp_norm);
    Vector gate = apply(layer.gate, x, {});
    const Vector up = apply(layer.up, x, {});
    for (std::size_t i = 0; i < gate.size(); ++i) {
      gate[i] = gate[i] * sigmoid(gate[i]) * up[i];
    }
    const Vector added = apply(layer.down, gate, {});
    std::transform(added.begin(), added.end(), row.begin(), row.begin(), std::plus<>());
  }
}

std::vector<std::vector<std::vector<double>>> ReferenceModel::streams(
    std::span<const TokenId> tokens) const {
  std::vector<Vector> residual;
  for (const TokenId token : tokens) {
    const auto begin = embedding_.values.begin() + std::ptrdiff_t{token} * spec_.hidden;
    residual.emplace_back(begin, begin + spec_.hidden);
  }
  std::vector<std::vector<Vector>> streams = {residual};
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    attend(layers_[layer], static_cast<int>(layer), residual);
    streams.push_back(residual);
    feed_forward(layers_[layer], residual);
    streams.push_back(residual);
  }
  return streams;
}

std::vector<std::vector<double>> ReferenceModel::hidden(std::span<const TokenId> tokens) const {
  std::vector<Vector> rows = streams(tokens).back();
  for (Vector& row : rows) {
    row = norm(row, final_norm_);
  }
  return rows;
}

std::vector<std::vector<double>> ReferenceModel::logits(std::span<const TokenId> tokens) const {
  std::vector<Vector> rows = hidden(tokens);
  for (Vector& row : rows) {
    row = apply(output_, row, {});
  }
  return rows;
}

}  // namespace protean
