// Measures sampling one row of logits with different options. Plain rows should not be slower
// because the options exist.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <random>

#include "worker/sampler.h"

namespace protean {
namespace {

constexpr int kVocab = 128256;

// Allows every n-th token.
class EveryNth : public TokenConstraint {
 public:
  explicit EveryNth(std::size_t n) : mask_(token_mask_words(kVocab)) {
    for (std::size_t token = 0; token < kVocab; token += n) {
      mask_[token / 64] |= std::uint64_t{1} << (token % 64);
    }
  }
  void allowed_after(std::span<const TokenId>, TokenMask mask) override {
    std::copy(mask_.begin(), mask_.end(), mask.begin());
  }

 private:
  std::vector<std::uint64_t> mask_;
};

void draw(benchmark::State& state, const SampleSpec& spec, const std::vector<TokenId>& history) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> logits(kVocab);
  for (float& logit : logits) {
    logit = normal(random);
  }
  cpu::Team team(1);
  Sampler sampler(kVocab, 1);
  TokenId token = 0;
  TokenLogprobs logprobs;
  for (auto _ : state) {
    sampler.sample(team, {logits, {&spec, 1}, history}, {&token, 1}, {&logprobs, 1});
    benchmark::DoNotOptimize(token);
  }
}

SampleSpec greedy() {
  SampleSpec spec;
  spec.params.temperature = 0.0F;
  return spec;
}

void plain_greedy(benchmark::State& state) {
  draw(state, greedy(), {});
}
BENCHMARK(plain_greedy)->Unit(benchmark::kMicrosecond);

void plain_random(benchmark::State& state) {
  draw(state, {}, {});
}
BENCHMARK(plain_random)->Unit(benchmark::kMicrosecond);

void plain_top_p(benchmark::State& state) {
  SampleSpec spec;
  spec.params.top_p = 0.9F;
  draw(state, spec, {});
}
BENCHMARK(plain_top_p)->Unit(benchmark::kMicrosecond);

void greedy_penalised(benchmark::State& state) {
  SampleSpec spec = greedy();
  spec.params.frequency_penalty = 0.5F;
  std::vector<TokenId> history(4096);
  for (std::size_t i = 0; i < history.size(); ++i) {
    history[i] = static_cast<TokenId>(i * 7919 % kVocab);
  }
  spec.history_count = 4096;
  spec.prompt_count = 100;
  draw(state, spec, history);
}
BENCHMARK(greedy_penalised)->Unit(benchmark::kMicrosecond);

void greedy_constrained(benchmark::State& state) {
  SampleSpec spec = greedy();
  spec.constraint = std::make_shared<EveryNth>(static_cast<std::size_t>(state.range(0)));
  draw(state, spec, {});
}
BENCHMARK(greedy_constrained)->Arg(1)->Arg(3)->Arg(20000)->Unit(benchmark::kMicrosecond);

void random_constrained(benchmark::State& state) {
  SampleSpec spec;
  spec.constraint = std::make_shared<EveryNth>(static_cast<std::size_t>(state.range(0)));
  draw(state, spec, {});
}
BENCHMARK(random_constrained)->Arg(1)->Arg(3)->Arg(20000)->Unit(benchmark::kMicrosecond);

void greedy_logprobs(benchmark::State& state) {
  SampleSpec spec = greedy();
  spec.top_logprobs = static_cast<int>(state.range(0));
  draw(state, spec, {});
}
BENCHMARK(greedy_logprobs)->Arg(0)->Arg(5)->Arg(20)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace protean

BENCHMARK_MAIN();
