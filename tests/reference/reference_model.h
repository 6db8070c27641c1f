#pragma once

#include <span>
#include <vector>

#include "base/ids.h"
#include "contract/model_spec.h"
#include "model/checkpoint.h"

namespace protean {

// Computes the decoder by its definition, in double precision and without a KV cache. The served
// forward pass is compared with it; they share no code except Checkpoint.
class ReferenceModel {
 public:
  // Rounds matrices to bf16 first if the served model stores them so.
  ReferenceModel(const Checkpoint& checkpoint, bool bf16_matrices);

  // Returns the residual stream before each half of a layer and after the last one,
  // [halves + 1][tokens][hidden].
  std::vector<std::vector<std::vector<double>>> streams(std::span<const TokenId> tokens) const;

  // Returns the normalised output of the last layer, [tokens][hidden].
  std::vector<std::vector<double>> hidden(std::span<const TokenId> tokens) const;

  // Returns the logits after each token, [tokens][vocab].
  std::vector<std::vector<double>> logits(std::span<const TokenId> tokens) const;

 private:
  using Vector = std::vector<double>;
  struct Matrix {
    int outputs = 0;
    int inputs = 0;
    Vector values;
  };
  struct Layer {
    Vector attention_norm, query_bias, key_bias, value_bias, query_norm, key_norm, output_bias;
    Vector mlp_norm;
    Matrix query, key, value, output, gate, up, down;
  };

  static Vector apply(const Matrix& matrix, const Vector& x, const Vector& bias);
  Vector norm(const Vector& x, const Vector& weight) const;
  void rotate(Vector& heads, int position) const;
  double frequency(int pair) const;
  Vector project(const Matrix& matrix, const Vector& bias, const Vector& head_norm,
                 const Vector& x) const;
  void attend(const Layer& layer, int index, std::vector<Vector>& residual) const;
  void feed_forward(const Layer& layer, std::vector<Vector>& residual) const;

  ModelSpec spec_;
  Matrix embedding_;
  Matrix output_;
  Vector final_norm_;
  std::vector<Layer> layers_;
};

}  // namespace protean
