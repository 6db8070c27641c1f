// Compares the swapping order of MorphServe's Algorithm 1, measured with kernels that share work,
// with a plain implementation in double precision that runs every model from the start.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "model/swap_probe.h"
#include "model/synthetic_checkpoint.h"
#include "quality/swap_order.h"
#include "quant/round_to_nearest.h"
#include "tests/reference/reference_model.h"

namespace protean {
namespace {

using Rows = std::vector<std::vector<double>>;
using Sequences = std::vector<std::vector<TokenId>>;

constexpr Precision kLow = Precision::kW3;

ModelSpec small_spec() {
  ModelSpec spec;
  spec.architecture = "synthetic";
  spec.layers = 4;
  spec.hidden = 160;
  spec.ffn = 224;
  spec.vocab = 101;
  spec.max_context = 64;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 32, .qkv_bias = true, .qk_norm = true};
  return spec;
}

Sequences text() {
  return {{3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79, 50, 28, 84, 19},
          {2, 71, 82, 81, 82, 84, 59, 4, 52},
          {57}};
}

bool is_attention(TensorRole role) {
  return role == TensorRole::kQuery || role == TensorRole::kKey || role == TensorRole::kValue ||
         role == TensorRole::kAttentionOutput;
}

bool is_mlp(TensorRole role) {
  return role == TensorRole::kGate || role == TensorRole::kUp || role == TensorRole::kDown;
}

// The model with some targets lowered: their matrices are rounded.
class LoweredCheckpoint : public SyntheticCheckpoint {
 public:
  LoweredCheckpoint(std::vector<bool> lowered, bool halves)
      : SyntheticCheckpoint(small_spec()), lowered_(std::move(lowered)), halves_(halves) {}

  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override {
    SyntheticCheckpoint::read_rows(role, layer, row, count, out);
    if (!is_attention(role) && !is_mlp(role)) {
      return;
    }
    const int target = halves_ ? 2 * layer + (is_mlp(role) ? 1 : 0) : layer;
    if (lowered_[static_cast<std::size_t>(target)]) {
      const std::int64_t width = row_length(role);
      const std::span rows(out, static_cast<std::size_t>(count * width));
      const cpu::WeightFormat format = weight_format(kLow, StoredWeights().group);
      const QuantizedMatrix rounded =
          round_to_nearest(rows, width, {format.bits(), format.group, format.symmetric});
      dequantize_rows(rounded.view(), 0, count, out);
    }
  }

 private:
  std::vector<bool> lowered_;
  bool halves_;
};

double inner(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

Similarity mean_similarity(const Rows& a, const Rows& b) {
  Similarity sum{0.0, 0.0};
  for (std::size_t row = 0; row < a.size(); ++row) {
    std::vector<double> difference;
    for (std::size_t i = 0; i < a[row].size(); ++i) {
      difference.push_back(b[row][i] - a[row][i]);
    }
    const double length = std::sqrt(inner(a[row], a[row]));
    sum.cosine += inner(a[row], b[row]) / (length * std::sqrt(inner(b[row], b[row])));
    sum.l2 += 1.0 - std::sqrt(inner(difference, difference)) / length;
  }
  const auto count = static_cast<double>(a.size());
  return {sum.cosine / count, sum.l2 / count};
}

// Computes similarities by their definition.
class PlainProfile {
 public:
  explicit PlainProfile(bool halves) : halves_(halves) {}

  int targets() const { return small_spec().layers * (halves_ ? 2 : 1); }

  const Rows& logits(const std::vector<bool>& lowered) {
    Rows& rows = logits_[lowered];
    if (rows.empty()) {
      const LoweredCheckpoint checkpoint(lowered, halves_);
      const ReferenceModel model(checkpoint, Precision::kF32);
      for (const auto& sequence : text()) {
        const Rows some = model.logits(sequence);
        rows.insert(rows.end(), some.begin(), some.end());
      }
    }
    return rows;
  }

  TargetSimilarity alone(int target) {
    std::vector<bool> lowered(static_cast<std::size_t>(targets()));
    const Rows before = stream(lowered, target);
    const Rows after = stream(lowered, target + 1);
    lowered[static_cast<std::size_t>(target)] = true;
    return {mean_similarity(before, after), mean_similarity(after, stream(lowered, target + 1))};
  }

  Similarity one_more(std::vector<bool> lowered, int target) {
    const Rows base = logits(lowered);
    lowered[static_cast<std::size_t>(target)] = true;
    return mean_similarity(base, logits(lowered));
  }

 private:
  // Returns the residual stream before a target.
  Rows stream(const std::vector<bool>& lowered, int target) const {
    const LoweredCheckpoint checkpoint(lowered, halves_);
    const ReferenceModel model(checkpoint, Precision::kF32);
    Rows rows;
    for (const auto& sequence : text()) {
      const Rows some =
          model.streams(sequence)[static_cast<std::size_t>(halves_ ? target : 2 * target)];
      rows.insert(rows.end(), some.begin(), some.end());
    }
    return rows;
  }

  bool halves_;
  std::map<std::vector<bool>, Rows> logits_;
};

// Expects similarities equal up to a twentieth of the change. Activations are rounded to bf16
// before they meet quantised weights, which is small noise next to 3-bit weights.
void expect_near(const Similarity& got, const Similarity& want, const std::string& what) {
  EXPECT_NEAR(got.cosine, want.cosine, 0.05 * std::abs(1.0 - want.cosine) + 1e-6) << what;
  EXPECT_NEAR(got.l2, want.l2, 0.05 * std::abs(1.0 - want.l2) + 1e-5) << what;
}

class SwapOrder : public testing::TestWithParam<bool> {
 protected:
  SwapOrder() : checkpoint_(small_spec()), team_(2) {
    auto probe = SwapProbe::create(
        team_, checkpoint_,
        {.full = Precision::kF32, .low = kLow, .halves = GetParam(), .longest = 20},
        [&](const ComponentVariant& which, std::span<std::byte> memory) {
          return load_component(checkpoint_, which, memory.data());
        });
    EXPECT_TRUE(probe.ok());
    probe_ = *std::move(probe);
  }

  SyntheticCheckpoint checkpoint_;
  cpu::Team team_;
  std::unique_ptr<SwapProbe> probe_;
};

TEST_P(SwapOrder, SensitivitiesAreThoseOfThePlainDefinition) {
  PlainProfile plain(GetParam());
  const Sequences sequences = text();
  ASSERT_EQ(probe_->targets(), plain.targets());
  const auto alone = probe_->alone(sequences);
  std::vector<bool> lowered(static_cast<std::size_t>(plain.targets()));
  for (int round = 0; round < 2; ++round) {  // nothing lowered, then two targets
    const auto more = probe_->one_more(sequences, lowered);
    for (int target = 0; target < plain.targets(); ++target) {
      const auto u = static_cast<std::size_t>(target);
      const std::string what = "target " + std::to_string(target);
      const TargetSimilarity want = plain.alone(target);
      expect_near(alone[u].transformation, want.transformation, what + " LTS");
      expect_near(alone[u].replacement, want.replacement, what + " LRS");
      EXPECT_LT(want.replacement.cosine, 1.0 - 1e-5);  // otherwise nothing is tested
      if (!lowered[u]) {
        expect_near(more[u], plain.one_more(lowered, target), what + " MDS");
      }
    }
    lowered[1] = lowered[3] = true;
  }
}

TEST_P(SwapOrder, TheOrderIsThatOfThePlainAlgorithm) {
  PlainProfile plain(GetParam());
  const Sequences sequences = text();
  const auto order_by = [&](auto&& alone, auto&& one_more) {
    std::vector<TargetSensitivity> targets;
    for (int target = 0; target < plain.targets(); ++target) {
      const TargetSimilarity similarity = alone(target);
      targets.push_back({similarity.transformation.cosine, similarity.replacement.cosine});
    }
    return rank_by_importance(targets, {}, one_more);
  };
  const auto measured = probe_->alone(sequences);
  const auto got = order_by([&](int target) { return measured[static_cast<std::size_t>(target)]; },
                            [&](const std::vector<bool>& lowered) {
                              std::vector<double> values;
                              for (const Similarity& one : probe_->one_more(sequences, lowered)) {
                                values.push_back(one.cosine);
                              }
                              return values;
                            });
  const auto want = order_by([&](int target) { return plain.alone(target); },
                             [&](const std::vector<bool>& lowered) {
                               std::vector<double> values;
                               for (int target = 0; target < plain.targets(); ++target) {
                                 values.push_back(plain.one_more(lowered, target).cosine);
                               }
                               return values;
                             });
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].target, want[i].target) << "place " << i;
    EXPECT_NEAR(got[i].score, want[i].score, 1e-3) << "place " << i;
  }
}

double plain_divergence(const Rows& full, const Rows& lowered) {
  const auto log_sum = [](const std::vector<double>& logits) {
    double sum = 0.0;
    for (const double logit : logits) {
      sum += std::exp(logit);
    }
    return std::log(sum);
  };
  double nats = 0.0;
  for (std::size_t row = 0; row < full.size(); ++row) {
    const double full_sum = log_sum(full[row]);
    const double lowered_sum = log_sum(lowered[row]);
    for (std::size_t id = 0; id < full[row].size(); ++id) {
      const double p = full[row][id] - full_sum;
      nats += std::exp(p) * (p - (lowered[row][id] - lowered_sum));
    }
  }
  return nats / static_cast<double>(full.size());
}

// Whatever a target is, each half is lowered alone.
TEST_P(SwapOrder, EachHalfLosesWhatThePlainDefinitionSays) {
  PlainProfile plain(true);
  const auto losses = probe_->divergence(text());
  ASSERT_EQ(std::ssize(losses), small_spec().layers);
  const std::vector<bool> none(static_cast<std::size_t>(plain.targets()));
  for (std::size_t half = 0; half < none.size(); ++half) {
    std::vector<bool> lowered = none;
    lowered[half] = true;
    const double want = plain_divergence(plain.logits(none), plain.logits(lowered));
    EXPECT_GT(want, 1e-6);  // otherwise nothing is tested
    EXPECT_NEAR(losses[half / 2][half % 2], want, 0.1 * want + 1e-7) << "half " << half;
  }
}

TEST_P(SwapOrder, TextIsForetoldAsTheLoweredModelDoes) {
  PlainProfile plain(GetParam());
  const Sequences sequences = text();
  std::vector<bool> lowered(static_cast<std::size_t>(plain.targets()));
  for (int round = 0; round < 2; ++round) {
    const TextNats got = probe_->score(sequences, lowered);
    double want = 0.0;
    std::size_t row = 0;
    for (const auto& sequence : sequences) {
      for (std::size_t at = 0; at < sequence.size(); ++at, ++row) {
        const std::vector<double>& logits = plain.logits(lowered)[row];
        double sum = 0.0;
        for (const double logit : logits) {
          sum += std::exp(logit);
        }
        if (at + 1 < sequence.size()) {
          want += std::log(sum) - logits[static_cast<std::size_t>(sequence[at + 1])];
        }
      }
    }
    EXPECT_EQ(got.tokens, 19 + 8);
    EXPECT_NEAR(got.nats, want, 2e-3 * want);
    lowered[0] = lowered[2] = true;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SwapOrder, testing::Bool(),
                         [](const auto& halves) { return halves.param ? "Halves" : "Layers"; });

}  // namespace
}  // namespace protean
