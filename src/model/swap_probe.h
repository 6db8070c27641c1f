#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "device/cpu/team.h"
#include "model/forward.h"
#include "model/one_layer_kv.h"
#include "model/rope_table.h"
#include "model/weights.h"

namespace protean {

// The similarity of two vectors, averaged over tokens; 1 if they are equal.
struct Similarity {
  double cosine = 1.0;
  double l2 = 1.0;  // 1 minus their distance relative to the first
};

// Similarities of one target's output at full precision: to its input (LTS), and to its output at
// fewer bits (LRS; MorphServe section 4.2).
struct TargetSimilarity {
  Similarity transformation;
  Similarity replacement;
};

struct TextNats {
  double nats = 0.0;
  std::int64_t tokens = 0;
};

struct SwapProbeOptions {
  Precision full = Precision::kBf16;
  Precision low = Precision::kW4;
  bool halves = false;  // a target is half a layer
  int longest = 512;    // tokens of a sequence
};

// Measures the effect of layers, or halves of layers, at fewer bits. Keeps both variants of each in
// memory, so lowering and raising cost nothing. Targets are numbered in the order in which they
// run. Borrows team and checkpoint. Used by one thread.
class SwapProbe {
 public:
  using Text = std::span<const std::vector<TokenId>>;  // sequences of 1 to `longest` tokens
  // Fills the memory of a half with its weights.
  using LoadComponent =
      std::function<Status(const ComponentVariant& which, std::span<std::byte> memory)>;

  static Result<std::unique_ptr<SwapProbe>> create(cpu::Team& team, const Checkpoint& checkpoint,
                                                   const SwapProbeOptions& options,
                                                   const LoadComponent& load);

  int targets() const { return options_.halves ? 2 * spec_.layers : spec_.layers; }

  std::vector<TargetSimilarity> alone(Text text);

  // Returns for each target the similarity of the logits with `lowered` and with this target
  // lowered too (MDS). Targets that are lowered already are not measured. All candidates share one
  // pass up to their place in the model.
  std::vector<Similarity> one_more(Text text, const std::vector<bool>& lowered);

  // Returns for each layer what its halves lose if one of them alone is lowered: the divergence of
  // the model's predictions from those at full precision, in the mean over tokens of the text, at
  // most 512. It does not matter what a target is. Halves share their passes like targets
  // of one_more().
  std::vector<LayerLoss> divergence(Text text);

  // Returns how well the model with these targets lowered predicts the text.
  TextNats score(Text text, const std::vector<bool>& lowered);

 private:
  SwapProbe(cpu::Team& team, const Checkpoint& checkpoint, const SwapProbeOptions& options);
  Status load(const Checkpoint& checkpoint, const LoadComponent& load);
  void pack_gram();
  void set_half(int layer, Component half, bool low);
  void set(int target, bool low);
  void set_all(const std::vector<bool>& lowered);
  std::span<const Component> halves_of(int target) const;
  int layer_of(int target) const { return options_.halves ? target / 2 : target; }
  ForwardBatch batch_of(const std::vector<TokenId>& sequence);
  void run(const Forward& forward, const ForwardBatch& batch, int target) const;
  Forward forward() const;

  cpu::Team& team_;
  const ModelSpec spec_;
  const SwapProbeOptions options_;
  ModelWeights weights_;
  // [layer][half][0: full precision, 1: fewer bits]
  std::vector<std::array<std::array<cpu::Region, 2>, 2>> memory_;
  std::vector<float> gram_memory_;
  cpu::PackedMatrix gram_;  // the LM head's Gram matrix
  RotaryTables rope_;
  OneLayerKv kv_;
  std::vector<cpu::KvLayer> kv_layers_;  // all share the same memory
  std::vector<int> positions_;
  cpu::AttentionSlice slice_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace protean
