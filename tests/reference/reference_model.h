#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "contract/model_spec.h"
#include "model/checkpoint.h"

namespace protean {

// Computes the decoder by its definition, in double precision and without a KV cache. The served
// forward pass is compared with it; they share no code except Checkpoint and the quantiser.
class ReferenceModel {
 public:
  // Rounds matrices first as the served model stores them at this precision. `positions` is how
  // many the served model allows.
  ReferenceModel(const Checkpoint& checkpoint, Precision precision, int positions = 512);

  // Returns the residual stream before each half of a layer and after the last one,
  // [halves + 1][tokens][hidden].
  std::vector<std::vector<std::vector<double>>> streams(std::span<const TokenId> tokens) const;

  // Returns the normalised output of the last layer, [tokens][hidden].
  std::vector<std::vector<double>> hidden(std::span<const TokenId> tokens) const;

  // Returns the logits after each token, [tokens][vocab].
  std::vector<std::vector<double>> logits(std::span<const TokenId> tokens) const;

  // Returns the logits of what hidden() returned.
  std::vector<std::vector<double>> logits_of(std::vector<std::vector<double>> hidden) const;

 private:
  using Vector = std::vector<double>;
  struct Matrix {
    int outputs = 0;
    int inputs = 0;
    Vector values;
  };
  struct Norms {
    Vector before, bias, after;
  };
  struct Layer {
    Norms attention_norms, mlp_norms;
    Vector query_bias, key_bias, value_bias, query_norm, key_norm, output_bias;
    Vector gate_bias, up_bias, down_bias;
    Matrix query, key, value, output, gate, up, down;
  };

  static Vector apply(const Matrix& matrix, const Vector& x, const Vector& bias);
  using ReadMatrix = std::function<Matrix(TensorRole role, int layer, int outputs, int inputs)>;
  using ReadVector = std::function<Vector(TensorRole role, int layer, int size)>;
  Layer read_layer(int index, const ReadMatrix& matrix, const ReadVector& vector) const;
  Vector norm(const Vector& x, const Vector& weight, const Vector& bias) const;
  bool has_window(int layer) const;
  void rotate(Vector& heads, int layer, int position) const;
  double frequency(const RopeSpec& rope, int pair) const;
  Vector project(const Matrix& matrix, const Vector& bias, const Vector& head_norm,
                 const Vector& x) const;
  std::vector<Vector> inputs(const std::vector<Vector>& residual, const Vector& weight,
                             const Vector& bias) const;
  void add(const std::vector<Vector>& outputs, const Vector& post_norm,
           std::vector<Vector>& residual) const;
  std::vector<Vector> attend(const Layer& layer, int index, const std::vector<Vector>& rows) const;
  std::vector<Vector> feed_forward(const Layer& layer, const std::vector<Vector>& rows) const;

  ModelSpec spec_;
  int positions_;
  Matrix embedding_;
  Matrix output_;
  Vector final_norm_, final_norm_bias_, output_bias_;
  Vector position_rows_;  // [max_context][hidden]
  std::vector<Layer> layers_;
};

}  // namespace protean
