// Measures what engine and scheduler cost in a step, with an executor that does nothing.

#include <benchmark/benchmark.h>

#include <cstdint>

#include "engine/engine.h"

namespace protean {
namespace {

class NullExecutor : public Executor {
 public:
  void prepare(MorphId, const MorphStep&) override {}
  void commit(MorphId) override {}
  void abort(MorphId) override {}
  void move_blocks(std::vector<BlockMove>) override {}
  void start(StepPlan plan) override {
    result = {.id = plan.id};
    result.sampled.assign(plan.samples.size(), 7);
  }
  StepResult result;
};

class NullSink : public TokenSink {
 public:
  void emit(OutputBatch batch) override { benchmark::DoNotOptimize(batch.outputs.size()); }
};

// range(0) sequences decode together, each with a prompt of range(1) tokens.
void decode_step(benchmark::State& state) {
  const auto batch = static_cast<int>(state.range(0));
  const auto prompt = static_cast<int>(state.range(1));
  NullExecutor executor;
  NullSink sink;
  Engine engine({.scheduler = {.kv_blocks = std::int64_t{batch} * 2048,
                               .max_num_seqs = batch,
                               .max_num_batched_tokens = 2048,
                               .max_model_len = 30000}},
                executor, sink);
  std::uint64_t last_id = 0;
  const auto refill = [&] {
    while (engine.observe().running + engine.observe().waiting < batch) {
      Request request;
      request.id = RequestId{++last_id};
      for (int i = 0; i < prompt; ++i) {
        request.prompt.push_back(static_cast<TokenId>(last_id) * 31 + i);
      }
      request.max_tokens = 30000 - prompt;
      engine.handle({0, Arrival{std::move(request)}});
    }
  };
  refill();
  while (engine.observe().output_tokens_total < std::int64_t{4} * batch) {
    engine.handle({0, StepDone{std::move(executor.result)}});
  }
  for (auto _ : state) {
    engine.handle({0, StepDone{std::move(executor.result)}});
    if (engine.observe().running < batch) {
      state.PauseTiming();
      refill();
      state.ResumeTiming();
    }
  }
}
BENCHMARK(decode_step)
    ->Args({1, 128})
    ->Args({64, 128})
    ->Args({64, 4096})
    ->Args({256, 1024})
    ->ArgNames({"batch", "prompt"})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace protean

BENCHMARK_MAIN();
