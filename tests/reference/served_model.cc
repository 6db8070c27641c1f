#include "tests/reference/served_model.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace protean {
namespace {

// Runs a plan on a device that is always alone.
StepResult run_alone(Rank& rank, const StepPlan& plan, const LogitsTap& tap = {}) {
  return std::move(rank.run(plan.id.value, {&plan, 1}, tap).at(0).result);
}

}  // namespace

ServedModel::ServedModel(const Checkpoint& checkpoint, const Options& options)
    : options_(options), vocab_(checkpoint.spec().vocab) {
  std::vector<LayerPrecision> layers = options.layers;
  if (layers.empty()) {
    layers.assign(static_cast<std::size_t>(checkpoint.spec().layers),
                  {options.precision, options.precision});
  }
  Form form = single_device_form(checkpoint.spec(), std::move(layers), DeviceId{0},
                                 {.block_tokens = options.block_tokens, .blocks = options.blocks});
  form.kv.precision = default_kv_precision(highest_precision(form));
  form.shards = options.shards;
  form.group = {whole_model(checkpoint.spec().layers, options.shards, DeviceId{0})};
  auto rank = Rank::create({.form = std::move(form),
                            .devices = {{.threads = options.threads}},
                            .max_step_tokens = 512,
                            .max_positions = 512},
                           checkpoint);
  check(rank.ok(), rank.ok() ? "" : rank.error().message);
  rank_ = std::move(*rank);
}

void ServedModel::step(const std::vector<std::pair<TestSequence*, int>>& chunks) {
  StepPlan plan{.id = StepId{++last_step_}};
  for (const auto& [sequence, count] : chunks) {
    const int end = sequence->computed + count;
    const int blocks = ceil_div(end, options_.block_tokens);
    check(end <= std::ssize(sequence->tokens) && blocks <= std::ssize(sequence->blocks),
          "the test gave the sequence tokens and blocks enough");
    plan.slices.push_back({.first_position = sequence->computed,
                           .token_begin = static_cast<int>(plan.tokens.size()),
                           .token_count = count,
                           .block_begin = static_cast<int>(plan.blocks.size()),
                           .block_count = blocks,
                           .sample = static_cast<int>(plan.samples.size())});
    plan.samples.push_back({{.temperature = 0.0F}, end});
    const auto first = sequence->tokens.begin() + sequence->computed;
    plan.tokens.insert(plan.tokens.end(), first, first + count);
    plan.blocks.insert(plan.blocks.end(), sequence->blocks.begin(),
                       sequence->blocks.begin() + blocks);
  }
  const auto keep = [&](int first_sample, std::span<const float> logits) {
    const auto vocab = static_cast<std::size_t>(vocab_);
    for (std::size_t row = 0; row < logits.size() / vocab; ++row) {
      const auto& [sequence, count] = chunks[static_cast<std::size_t>(first_sample) + row];
      const auto of_row = logits.subspan(row * vocab, vocab);
      sequence->logits[sequence->computed + count - 1] = {of_row.begin(), of_row.end()};
    }
  };
  const StepResult result = run_alone(*rank_, plan, keep);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    chunks[i].first->drawn.push_back(result.sampled[i]);
    chunks[i].first->computed += chunks[i].second;
  }
}

void ServedModel::run(TestSequence& sequence, const std::vector<int>& chunk_sizes) {
  for (std::size_t i = 0; sequence.computed < std::ssize(sequence.tokens); ++i) {
    const int left = static_cast<int>(sequence.tokens.size()) - sequence.computed;
    step({{&sequence, std::min(left, chunk_sizes[std::min(i, chunk_sizes.size() - 1)])}});
  }
}

ReadPrompt ServedModel::read(const std::vector<TokenId>& prompt,
                             const std::vector<int>& chunk_sizes) {
  ReadPrompt read;
  const int length = static_cast<int>(prompt.size());
  int first = 0;
  for (std::size_t i = 0; first < length; ++i) {
    const int count = std::min(length - first, chunk_sizes[std::min(i, chunk_sizes.size() - 1)]);
    read_chunk(prompt, first, count, read);
    first += count;
  }
  return read;
}

// Runs the chunk twice, once for each pooling; the second run computes the same KV again.
void ServedModel::read_chunk(const std::vector<TokenId>& prompt, int first, int count,
                             ReadPrompt& so_far) {
  const int end = first + count;
  const int blocks = ceil_div(end, options_.block_tokens);
  StepPlan plan{.tokens = {prompt.begin() + first, prompt.begin() + end}};
  for (BlockId block = 0; block < blocks; ++block) {
    plan.blocks.push_back(block);
  }
  for (int i = 0; i < count && first + i + 1 < std::ssize(prompt); ++i) {
    plan.scores.push_back({.after = i,
                           .token = prompt[static_cast<std::size_t>(first + i + 1)],
                           .top_logprobs = 3,
                           .whole_row = true});
  }
  plan.slices.push_back({.first_position = first,
                         .token_count = count,
                         .block_count = blocks,
                         .score_count = static_cast<int>(plan.scores.size()),
                         .pooling = Pooling::kMean});
  plan.id = StepId{++last_step_};
  StepResult result = run_alone(*rank_, plan);
  so_far.scored.insert(so_far.scored.end(), result.scored.begin(), result.scored.end());
  so_far.row_sum.resize(result.pooled.at(0).size());
  for (std::size_t i = 0; i < so_far.row_sum.size(); ++i) {
    so_far.row_sum[i] += result.pooled[0][i];
  }
  plan.scores.clear();
  plan.slices[0].score_count = 0;
  plan.slices[0].pooling = Pooling::kLast;
  plan.id = StepId{++last_step_};
  so_far.last_row = run_alone(*rank_, plan).pooled.at(0);
}

}  // namespace protean
