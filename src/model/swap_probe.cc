#include "model/swap_probe.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "quant/input_statistics.h"

namespace protean {
namespace {

constexpr int kLogitRows = 64;  // projected at once
constexpr std::int64_t kGramRows = 256;
constexpr std::size_t kDivergenceTokens = 512;  // more hardly change the mean

// Computes the similarity of a and b = a + d from inner products. Uses d, because b is so close to
// a that the difference of two long sums would be noise.
Similarity similarity(double aa, double ad, double dd) {
  const double bb = aa + 2.0 * ad + dd;
  if (aa <= 0.0 || bb <= 0.0) {
    const bool same = dd <= 0.0;
    return {.cosine = same ? 1.0 : 0.0, .l2 = same ? 1.0 : 0.0};
  }
  return {.cosine = (aa + ad) / std::sqrt(aa * bb), .l2 = 1.0 - std::sqrt(std::max(dd, 0.0) / aa)};
}

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += double{a[i]} * double{b[i]};
  }
  return sum;
}

// Averages similarities over tokens.
class SimilaritySum {
 public:
  void add(const Similarity& one) {
    cosine_ += one.cosine;
    l2_ += one.l2;
    ++count_;
  }
  Similarity mean() const {
    return count_ == 0 ? Similarity{}
                       : Similarity{.cosine = cosine_ / static_cast<double>(count_),
                                    .l2 = l2_ / static_cast<double>(count_)};
  }

 private:
  double cosine_ = 0.0;
  double l2_ = 0.0;
  std::int64_t count_ = 0;
};

std::vector<float> difference(std::span<const float> a, std::span<const float> b) {
  std::vector<float> d(a.size());
  std::transform(b.begin(), b.end(), a.begin(), d.begin(), std::minus<>());
  return d;
}

void add_rows(SimilaritySum& sum, std::span<const float> a, std::span<const float> b,
              std::int64_t width) {
  const auto size = static_cast<std::size_t>(width);
  const std::vector<float> d = difference(a, b);
  for (std::size_t at = 0; at < a.size(); at += size) {
    const auto row = a.subspan(at, size);
    const auto change = std::span(d).subspan(at, size);
    sum.add(similarity(dot(row, row), dot(row, change), dot(change, change)));
  }
}

// Returns the logarithm of the sum of the exponentials.
double log_sum(std::span<const float> logits) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) {
    sum += double{std::exp(logit - largest)};
  }
  return std::log(sum) + double{largest};
}

// Returns -log softmax(logits)[token].
double surprise(std::span<const float> logits, TokenId token) {
  return log_sum(logits) - double{logits[static_cast<std::size_t>(token)]};
}

// Returns the KL divergence of softmax(logits) from softmax(reference).
double divergence_of(std::span<const float> logits, std::span<const float> reference) {
  const double log_reference = log_sum(reference);
  double change = 0.0;  // of a token's logit, in the mean
  for (std::size_t id = 0; id < logits.size(); ++id) {
    change += std::exp(double{reference[id]} - log_reference) *
              (double{reference[id]} - double{logits[id]});
  }
  const double nats = change + log_sum(logits) - log_reference;
  return nats < 0 ? 0 : nats;  // by rounding
}

// Returns at most `most` of so many rows, evenly spread.
std::vector<int> spread_rows(std::size_t rows, std::size_t most) {
  const std::size_t count = std::min(rows, most);
  std::vector<int> spread;
  for (std::size_t i = 0; i < count; ++i) {
    spread.push_back(static_cast<int>((2 * i + 1) * rows / (2 * count)));
  }
  return spread;
}

cpu::KvElement kv_element(Precision full) {
  return full == Precision::kF32 ? cpu::KvElement::kF32 : cpu::KvElement::kBf16;
}

}  // namespace

SwapProbe::SwapProbe(cpu::Team& team, const Checkpoint& checkpoint, const SwapProbeOptions& options)
    : team_(team),
      spec_(checkpoint.spec()),
      options_(options),
      rope_(spec_, options.longest),
      positions_(static_cast<std::size_t>(options.longest)) {
  std::iota(positions_.begin(), positions_.end(), 0);
}

Result<std::unique_ptr<SwapProbe>> SwapProbe::create(cpu::Team& team, const Checkpoint& checkpoint,
                                                     const SwapProbeOptions& options,
                                                     const LoadComponent& load) {
  check(options.longest > 0, "a sequence has room");
  auto probe = std::unique_ptr<SwapProbe>(new SwapProbe(team, checkpoint, options));
  if (const Status loaded = probe->load(checkpoint, load); !loaded) {
    return loaded.error();
  }
  Result<OneLayerKv> kv = OneLayerKv::create(
      probe->spec_, static_cast<std::size_t>(options.longest), kv_element(options.full));
  Result<Scratch> scratch = Scratch::create(probe->spec_, options.longest, kLogitRows);
  if (!kv || !scratch) {
    return !kv ? kv.error() : scratch.error();
  }
  probe->kv_ = std::move(*kv);
  probe->kv_layers_.assign(static_cast<std::size_t>(probe->spec_.layers), probe->kv_.layer);
  probe->scratch_ = std::make_unique<Scratch>(std::move(*scratch));
  probe->pack_gram();
  return probe;
}

Status SwapProbe::load(const Checkpoint& checkpoint, const LoadComponent& load) {
  const auto layers = static_cast<std::size_t>(spec_.layers);
  Result<ModelWeights> outer =
      load_embeddings(checkpoint, default_embeddings_precision(options_.full),
                      whole_model(spec_.layers, 1, DeviceId{}));
  if (!outer) {
    return outer.error();
  }
  weights_ = std::move(*outer);
  memory_.resize(layers);
  for (int layer = 0; layer < spec_.layers; ++layer) {
    for (const Component half : kLayerHalves) {
      for (const bool low : {false, true}) {
        const Precision precision = low ? options_.low : options_.full;
        Result<cpu::Region> region = cpu::Region::map(component_size(spec_, half, precision));
        if (!region) {
          return region.error();
        }
        const std::span memory(region->data(), static_cast<std::size_t>(region->bytes()));
        if (Status loaded = load({layer, half, precision}, memory); !loaded) {
          return loaded;
        }
        memory_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(half)][low ? 1 : 0] =
            std::move(*region);
      }
    }
  }
  set_all(std::vector<bool>(static_cast<std::size_t>(targets())));
  return {};
}

// Logits are W h, so their inner products are h' (W' W) h: the hidden x hidden Gram matrix of the
// LM head replaces rows of logits.
void SwapProbe::pack_gram() {
  InputStatistics table(spec_.hidden);
  std::vector<TokenId> ids(kGramRows);
  std::vector<float> rows(static_cast<std::size_t>(kGramRows * spec_.hidden));
  for (std::int64_t first = 0; first < spec_.vocab; first += kGramRows) {
    const std::int64_t count = std::min(kGramRows, spec_.vocab - first);
    std::iota(ids.begin(), ids.end(), static_cast<TokenId>(first));
    const auto some = std::span(rows).first(static_cast<std::size_t>(count * spec_.hidden));
    cpu::gather_rows(weights_.embeddings.front().output,
                     std::span(ids).first(static_cast<std::size_t>(count)), some);
    table.add(team_, some, weights_.embeddings.front().output.format.inputs());
  }
  gram_ = {
      .format = {.kind = cpu::WeightKind::kF32}, .outputs = spec_.hidden, .inputs = spec_.hidden};
  constexpr std::size_t kSlack = 16;  // floats to the next 64-byte line
  gram_memory_.resize(static_cast<std::size_t>(gram_.bytes()) / sizeof(float) + kSlack);
  const auto address = reinterpret_cast<std::uintptr_t>(gram_memory_.data());
  gram_.data = reinterpret_cast<std::byte*>(gram_memory_.data()) + (64 - address % 64) % 64;
  for (std::int64_t panel = 0; panel < gram_.panels(); ++panel) {
    const std::int64_t first = panel * cpu::PackedMatrix::kPanel;
    const std::int64_t count =
        std::min<std::int64_t>(cpu::PackedMatrix::kPanel, gram_.outputs - first);
    cpu::pack_panel(gram_, panel, table.gram().data() + first * spec_.hidden,
                    static_cast<int>(count));
  }
}

std::span<const Component> SwapProbe::halves_of(int target) const {
  return options_.halves ? std::span(kLayerHalves).subspan(static_cast<std::size_t>(target % 2), 1)
                         : std::span<const Component>(kLayerHalves);
}

void SwapProbe::set_half(int layer, Component half, bool low) {
  const auto at = static_cast<std::size_t>(layer);
  bind_half(weights_.layers[at], spec_, half, low ? options_.low : options_.full,
            memory_[at][static_cast<std::size_t>(half)][low ? 1 : 0].data());
}

void SwapProbe::set(int target, bool low) {
  for (const Component half : halves_of(target)) {
    set_half(layer_of(target), half, low);
  }
}

void SwapProbe::set_all(const std::vector<bool>& lowered) {
  check(static_cast<int>(lowered.size()) == targets(), "every target is lowered or not");
  for (int target = 0; target < targets(); ++target) {
    set(target, lowered[static_cast<std::size_t>(target)]);
  }
}

Forward SwapProbe::forward() const {
  return Forward({.team = &team_,
                  .spec = &spec_,
                  .weights = &weights_,
                  .rope = rope_.view(),
                  .kv = kv_layers_,
                  .scratch = scratch_.get()});
}

ForwardBatch SwapProbe::batch_of(const std::vector<TokenId>& sequence) {
  check(!sequence.empty() && std::ssize(sequence) <= options_.longest, "a sequence fits");
  slice_ = {.rows = static_cast<int>(sequence.size()), .blocks = kv_.blocks};
  return {.tokens = sequence,
          .positions = std::span(positions_).first(sequence.size()),
          .slices = {&slice_, 1}};
}

void SwapProbe::run(const Forward& forward, const ForwardBatch& batch, int target) const {
  for (const Component half : halves_of(target)) {
    forward.run_half(batch, layer_of(target), half);
  }
}

std::vector<TargetSimilarity> SwapProbe::alone(Text text) {
  set_all(std::vector<bool>(static_cast<std::size_t>(targets())));
  const Forward forward = this->forward();
  std::vector<std::pair<SimilaritySum, SimilaritySum>> sums(static_cast<std::size_t>(targets()));
  for (const std::vector<TokenId>& sequence : text) {
    const ForwardBatch batch = batch_of(sequence);
    const std::span<float> residual = forward.residual(batch.rows());
    forward.embed(batch);
    for (int target = 0; target < targets(); ++target) {
      auto& [transformation, replacement] = sums[static_cast<std::size_t>(target)];
      const std::vector<float> before(residual.begin(), residual.end());
      run(forward, batch, target);
      const std::vector<float> after(residual.begin(), residual.end());
      add_rows(transformation, before, after, spec_.hidden);
      set(target, true);
      std::copy(before.begin(), before.end(), residual.begin());
      run(forward, batch, target);
      add_rows(replacement, after, residual, spec_.hidden);
      set(target, false);
      std::copy(after.begin(), after.end(), residual.begin());
    }
  }
  std::vector<TargetSimilarity> found;
  for (const auto& [transformation, replacement] : sums) {
    found.push_back({transformation.mean(), replacement.mean()});
  }
  return found;
}

std::vector<Similarity> SwapProbe::one_more(Text text, const std::vector<bool>& lowered) {
  set_all(lowered);
  const Forward forward = this->forward();
  const auto hidden = static_cast<std::size_t>(spec_.hidden);
  std::vector<SimilaritySum> sums(lowered.size());
  std::vector<std::vector<float>> before(lowered.size());  // the residual stream, by target
  std::vector<float> product;
  for (const std::vector<TokenId>& sequence : text) {
    const ForwardBatch batch = batch_of(sequence);
    const auto rows = static_cast<int>(batch.rows());
    const std::span<float> residual = forward.residual(batch.rows());
    forward.embed(batch);
    for (int target = 0; target < targets(); ++target) {
      before[static_cast<std::size_t>(target)].assign(residual.begin(), residual.end());
      run(forward, batch, target);
    }
    const auto last = forward.normalise(0, rows);
    const std::vector<float> base(last.begin(), last.end());
    product.resize(base.size());
    cpu::matmul(team_, base, gram_, product);
    std::vector<double> squares;  // squared norm of each token's logits
    for (std::size_t at = 0; at < base.size(); at += hidden) {
      squares.push_back(
          dot(std::span(base).subspan(at, hidden), std::span(product).subspan(at, hidden)));
    }
    for (int target = 0; target < targets(); ++target) {
      const auto u = static_cast<std::size_t>(target);
      if (lowered[u]) {
        continue;
      }
      set(target, true);
      std::copy(before[u].begin(), before[u].end(), residual.begin());
      for (int next = target; next < targets(); ++next) {
        run(forward, batch, next);
      }
      set(target, false);
      const std::vector<float> d = difference(base, forward.normalise(0, rows));
      cpu::matmul(team_, d, gram_, product);
      for (std::size_t row = 0; row < squares.size(); ++row) {
        const auto changed = std::span(product).subspan(row * hidden, hidden);
        sums[u].add(similarity(squares[row],
                               dot(std::span(base).subspan(row * hidden, hidden), changed),
                               dot(std::span(d).subspan(row * hidden, hidden), changed)));
      }
    }
  }
  std::vector<Similarity> found;
  for (const SimilaritySum& sum : sums) {
    found.push_back(sum.mean());
  }
  return found;
}

std::vector<LayerLoss> SwapProbe::divergence(Text text) {
  set_all(std::vector<bool>(static_cast<std::size_t>(targets())));
  const Forward forward = this->forward();
  const auto vocab = static_cast<std::size_t>(spec_.vocab);
  const int halves = 2 * spec_.layers;
  const auto run_half = [&](const ForwardBatch& batch, int at) {
    forward.run_half(batch, at / 2, kLayerHalves[static_cast<std::size_t>(at % 2)]);
  };
  // The residual stream before each layer: before each half it would be twice as much memory.
  std::vector<std::vector<float>> before(static_cast<std::size_t>(spec_.layers));
  std::vector<double> nats(2 * before.size());
  double tokens = 0;
  const std::size_t most = std::max<std::size_t>(1, kDivergenceTokens / text.size());
  for (const std::vector<TokenId>& sequence :
       text.first(std::min(text.size(), kDivergenceTokens))) {
    const ForwardBatch batch = batch_of(sequence);
    const std::span<float> residual = forward.residual(batch.rows());
    const std::vector<int> rows =
        spread_rows(sequence.size(), std::min<std::size_t>(most, kLogitRows));
    forward.embed(batch);
    for (int at = 0; at < halves; ++at) {
      if (at % 2 == 0) {
        before[static_cast<std::size_t>(at / 2)].assign(residual.begin(), residual.end());
      }
      run_half(batch, at);
    }
    const auto full = forward.project_logits(rows);
    const std::vector<float> reference(full.begin(), full.end());
    for (int at = 0; at < halves; ++at) {
      const Component half = kLayerHalves[static_cast<std::size_t>(at % 2)];
      const auto u = static_cast<std::size_t>(at);
      set_half(at / 2, half, true);
      std::copy(before[u / 2].begin(), before[u / 2].end(), residual.begin());
      for (int next = at - at % 2; next < halves; ++next) {
        run_half(batch, next);
      }
      set_half(at / 2, half, false);
      const auto logits = forward.project_logits(rows);
      std::vector<double> of_rows(rows.size());
      team_.run(std::ssize(rows), [&](std::int64_t row, int) {
        const auto first = static_cast<std::size_t>(row) * vocab;
        of_rows[static_cast<std::size_t>(row)] =
            divergence_of(logits.subspan(first, vocab), std::span(reference).subspan(first, vocab));
      });
      nats[u] = std::accumulate(of_rows.begin(), of_rows.end(), nats[u]);
    }
    tokens += static_cast<double>(rows.size());
  }
  std::vector<LayerLoss> losses;
  for (std::size_t at = 0; at < nats.size(); at += 2) {
    losses.push_back({nats[at] / tokens, nats[at + 1] / tokens});
  }
  return losses;
}

TextNats SwapProbe::score(Text text, const std::vector<bool>& lowered) {
  set_all(lowered);
  const Forward forward = this->forward();
  TextNats score;
  for (const std::vector<TokenId>& sequence : text) {
    const ForwardBatch batch = batch_of(sequence);
    forward.embed(batch);
    forward.run_layers(batch, {.first = 0, .count = spec_.layers});
    const auto scored = static_cast<int>(sequence.size()) - 1;
    for (int first = 0; first < scored; first += kLogitRows) {
      const int count = std::min(kLogitRows, scored - first);
      std::vector<int> rows(static_cast<std::size_t>(count));
      std::iota(rows.begin(), rows.end(), first);
      const auto logits = forward.project_logits(rows);
      std::vector<double> nats(rows.size());
      team_.run(count, [&](std::int64_t row, int) {
        const auto vocab = static_cast<std::size_t>(spec_.vocab);
        const auto at = static_cast<std::size_t>(row);
        nats[at] = surprise(logits.subspan(at * vocab, vocab),
                            sequence[static_cast<std::size_t>(first) + at + 1]);
      });
      score.nats = std::accumulate(nats.begin(), nats.end(), score.nats);
    }
    score.tokens += scored;
  }
  return score;
}

}  // namespace protean
