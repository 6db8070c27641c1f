#include "model/random_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "model/architecture.h"

namespace protean {
namespace {

constexpr std::int64_t kPiece = 1 << 16;  // weights that a thread computes at once

struct Spread {
  float mean = 0.0F;
  float deviation = 0.0F;
};

// Matrices that add to the residual stream are smaller in deeper models, as in trained models.
Spread spread_of(TensorRole role, std::int64_t width, const ModelSpec& spec) {
  const float unit = 1.0F / std::sqrt(static_cast<float>(width));
  switch (role) {
    case TensorRole::kEmbedding:
      return {0.0F, spec.tied_embeddings ? 2.0F * unit : 1.0F};
    case TensorRole::kFinalNorm:
    case TensorRole::kAttentionNorm:
    case TensorRole::kMlpNorm:
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
    case TensorRole::kAttentionPostNorm:
    case TensorRole::kMlpPostNorm:
      return {1.0F, 0.2F};
    case TensorRole::kQueryBias:
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
    case TensorRole::kAttentionOutputBias:
    case TensorRole::kFinalNormBias:
    case TensorRole::kOutputBias:
    case TensorRole::kPositions:
    case TensorRole::kAttentionNormBias:
    case TensorRole::kMlpNormBias:
    case TensorRole::kGateBias:
    case TensorRole::kUpBias:
    case TensorRole::kDownBias:
      return {0.0F, 0.1F};
    case TensorRole::kAttentionOutput:
    case TensorRole::kDown:
      return {0.0F, 2.0F * unit / std::sqrt(static_cast<float>(2 * spec.layers))};
    case TensorRole::kOutput:
      return {0.0F, 2.0F * unit};
    default:
      return {0.0F, unit};
  }
}

// Returns the sum of four uniform numbers from a hash of the weight's place, which is nearly
// normal.
float normal_at(std::uint64_t place) {
  std::uint64_t hash = (place ^ place >> 30) * 0xBF58476D1CE4E5B9U;
  hash = (hash ^ hash >> 27) * 0x94D049BB133111EBU;
  hash ^= hash >> 31;
  const std::uint64_t sum =
      (hash & 0xFFFFU) + (hash >> 16 & 0xFFFFU) + (hash >> 32 & 0xFFFFU) + (hash >> 48);
  const float centred = static_cast<float>(static_cast<std::int64_t>(sum) - 2 * 0xFFFF);
  return centred * (std::numbers::sqrt3_v<float> / 65536.0F);
}

}  // namespace

void RandomCheckpoint::read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                                 float* out) const {
  const auto needed = needed_tensors(spec_);
  const auto tensor = std::find_if(needed.begin(), needed.end(), [&](const NeededTensor& need) {
    return need.role == role && need.layer == layer;
  });
  check(tensor != needed.end(), "the model has this tensor");
  const std::int64_t width = tensor->columns == 0 ? tensor->rows : tensor->columns;
  const Spread spread = spread_of(role, width, spec_);
  const std::uint64_t stream =
      (seed_ * 1024 + static_cast<std::uint64_t>(role)) * 65536 + static_cast<std::uint64_t>(layer);
  const std::uint64_t first =
      stream * 0xD1B54A32D192ED03U + static_cast<std::uint64_t>(row * width);
  const std::int64_t total = count * width;
  team_.run((total + kPiece - 1) / kPiece, [&](std::int64_t piece, int) {
    const std::int64_t end = std::min(total, (piece + 1) * kPiece);
    for (std::int64_t i = piece * kPiece; i < end; ++i) {
      const std::uint64_t place = (first + static_cast<std::uint64_t>(i)) * 0x9E3779B97F4A7C15U;
      out[i] = spread.mean + spread.deviation * normal_at(place);
    }
  });
}

}  // namespace protean
