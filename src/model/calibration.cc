#include "model/calibration.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "device/cpu/bf16.h"
#include "model/one_layer_kv.h"
#include "model/weights.h"

namespace protean {
namespace {

class Collector final : public InputObserver {
 public:
  Collector(cpu::Team& team, LayerStatistics& statistics) : team_(team), statistics_(statistics) {}

  void on_input(int, LayerInput which, std::span<const float> rows) override {
    statistics_.of(which).add(team_, rows, cpu::Element::kBf16);
  }

 private:
  cpu::Team& team_;
  LayerStatistics& statistics_;
};

std::size_t longest_of(const std::vector<std::vector<TokenId>>& sequences) {
  std::size_t longest = 0;
  for (const auto& sequence : sequences) {
    longest = std::max(longest, sequence.size());
  }
  return longest;
}

}  // namespace

LayerStatistics::LayerStatistics(const ModelSpec& spec) {
  inputs.emplace_back(spec.hidden);
  inputs.emplace_back(std::int64_t{spec.attention.heads} * spec.attention.head_dim);
  inputs.emplace_back(spec.hidden);
  inputs.emplace_back(spec.ffn);
}

Result<Calibration> Calibration::create(cpu::Team& team, const Checkpoint& checkpoint,
                                        std::vector<std::vector<TokenId>> sequences) {
  check(!sequences.empty(), "there is text to calibrate by");
  Calibration calibration(team, checkpoint.spec());
  const auto hidden = static_cast<std::size_t>(checkpoint.spec().hidden);
  for (const std::vector<TokenId>& sequence : sequences) {
    check(!sequence.empty(), "a sequence has tokens");
    for (const TokenId token : sequence) {
      check(token >= 0 && token < checkpoint.spec().vocab, "tokens are in the vocabulary");
      const std::size_t at = calibration.residual_.size();
      calibration.residual_.resize(at + hidden);
      checkpoint.read_rows(TensorRole::kEmbedding, 0, token, 1, calibration.residual_.data() + at);
    }
  }
  checkpoint.release(TensorRole::kEmbedding, 0);
  for (float& value : calibration.residual_) {
    value = cpu::float_from(cpu::bf16_from(value));  // as the served embedding matrix stores it
  }
  calibration.rope_ =
      std::make_unique<RotaryTables>(checkpoint.spec(), static_cast<int>(longest_of(sequences)));
  calibration.sequences_ = std::move(sequences);
  return calibration;
}

std::int64_t Calibration::tokens() const {
  return std::ssize(residual_) / spec_.hidden;
}

Result<LayerStatistics> Calibration::observe(const LayerTensors& layer) {
  LayerStatistics statistics(spec_);
  const Status run_status = run(layer, &statistics);
  return run_status ? Result<LayerStatistics>(std::move(statistics)) : run_status.error();
}

Status Calibration::advance(const LayerTensors& layer) {
  return run(layer, nullptr);
}

Status Calibration::run(const LayerTensors& layer, LayerStatistics* statistics) {
  const std::size_t longest = longest_of(sequences_);
  ModelWeights weights(layer.spec(), whole_model(1, 1, DeviceId{}));
  const Status loaded = load_layer(weights, layer, 0, LayerPrecision{});
  Result<OneLayerKv> kv = OneLayerKv::create(layer.spec(), longest, cpu::KvElement::kBf16);
  Result<Scratch> scratch = Scratch::create(layer.spec(), static_cast<int>(longest), 1);
  if (!loaded || !kv || !scratch) {
    return !loaded ? loaded.error() : !kv ? kv.error() : scratch.error();
  }
  LayerStatistics none(ModelSpec{});
  Collector collector(*team_, statistics == nullptr ? none : *statistics);
  const Forward forward({.team = team_,
                         .spec = &layer.spec(),
                         .weights = &weights,
                         .rope = rope_->view(),
                         .kv = {&kv->layer, 1},
                         .scratch = &*scratch,
                         .observer = statistics == nullptr ? nullptr : &collector});
  std::vector<int> positions(longest);
  std::iota(positions.begin(), positions.end(), 0);
  auto next = residual_.begin();
  for (const std::vector<TokenId>& sequence : sequences_) {
    const cpu::AttentionSlice slice{.rows = static_cast<int>(sequence.size()),
                                    .blocks = kv->blocks};
    const ForwardBatch batch{.tokens = sequence,
                             .positions = std::span(positions).first(sequence.size()),
                             .slices = {&slice, 1}};
    const std::span<float> residual = forward.residual(batch.rows());
    const auto end = next + std::ssize(residual);
    std::copy(next, end, residual.begin());
    forward.run_layers(batch, {.first = 0, .count = 1});
    if (statistics == nullptr) {
      std::copy(residual.begin(), residual.end(), next);
    }
    next = end;
  }
  return {};
}

}  // namespace protean
