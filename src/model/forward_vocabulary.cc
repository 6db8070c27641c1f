// What a step does with the vocabulary: rows of the embedding matrix at its beginning, logits from
// the shards of the LM head at its end.

#include <algorithm>
#include <array>
#include <functional>

#include "base/check.h"
#include "model/forward.h"

namespace protean {
namespace {

std::span<float> first_rows(std::span<float> buffer, std::int64_t rows, std::int64_t width) {
  return buffer.first(static_cast<std::size_t>(rows * width));
}

const float* data_or_null(std::span<const float> bias) {
  return bias.empty() ? nullptr : bias.data();
}

}  // namespace

void Forward::embed(const ForwardBatch& batch) const {
  check(batch.rows() > 0, "a batch has at least one row");
  check(batch.positions.size() == batch.tokens.size(), "every row has a position");
  const auto residual = this->residual(batch.rows(), batch.first_row);
  if (whole()) {
    cpu::gather_rows(setup_.weights->embeddings.front().embedding, batch.tokens, residual);
    finish_embedding(residual, batch.positions);
    return;
  }
  const auto width = static_cast<std::size_t>(setup_.spec->hidden);
  const ShardRun& run = setup_.weights->holding.embeddings;
  for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
    const int owner = batch.tokens[row] / shard().vocab;
    if (run.has(owner)) {
      const TokenId id = batch.tokens[row] % shard().vocab;
      const auto mine = residual.subspan(row * width, width);
      cpu::gather_rows(setup_.weights->embeddings[static_cast<std::size_t>(owner)].embedding,
                       {&id, 1}, mine);
      finish_embedding(mine, batch.positions.subspan(row, 1));
    }
  }
  if (!alone(run)) {
    gather_missing(batch);
  }
}

// Scales embedding rows by the model's factor, and adds learned position rows, if the model has
// them.
void Forward::finish_embedding(std::span<float> rows, std::span<const int> positions) const {
  if (const float factor = setup_.spec->multipliers.embedding; factor != 1.0F) {
    cpu::scale_and_cap(*setup_.team, factor, 0.0F, rows);
  }
  if (!setup_.spec->learned_positions) {
    return;
  }
  const auto width = static_cast<std::size_t>(setup_.spec->hidden);
  for (std::size_t row = 0; row < positions.size(); ++row) {
    check(positions[row] < setup_.spec->max_context, "every position has a learned row");
    const auto from =
        embeddings().positions.subspan(static_cast<std::size_t>(positions[row]) * width, width);
    std::transform(from.begin(), from.end(),
                   rows.begin() + static_cast<std::ptrdiff_t>(row * width),
                   rows.begin() + static_cast<std::ptrdiff_t>(row * width), std::plus<>());
  }
}

// Copies the rows of tokens that other devices hold. Each device writes only rows that no other one
// reads from it.
void Forward::gather_missing(const ForwardBatch& batch) const {
  const auto residual = this->residual(batch.rows(), batch.first_row);
  const auto width = static_cast<std::size_t>(setup_.spec->hidden);
  cpu::Exchange& exchange = *setup_.exchange;
  exchange.show(cpu::SharedRows::kEmbedding, 0, residual);
  for (const cpu::ShownRows& shown : exchange.collect(cpu::SharedRows::kEmbedding, 0)) {
    if (shown.rows.data() == residual.data()) {
      continue;
    }
    for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
      const int owner = batch.tokens[row] / shard().vocab;
      if (owner >= shown.first_shard && owner < shown.first_shard + shown.shards) {
        const auto from = shown.rows.subspan(row * width, width);
        std::copy(from.begin(), from.end(), residual.subspan(row * width, width).begin());
      }
    }
  }
  exchange.release(cpu::SharedRows::kEmbedding, 0);
  exchange.reuse(cpu::SharedRows::kEmbedding);  // before a layer adds to these rows
}

const EmbeddingWeights& Forward::embeddings() const {
  const ModelWeights& weights = *setup_.weights;
  return weights.embeddings[static_cast<std::size_t>(weights.holding.embeddings.first)];
}

std::span<const float> Forward::normalise(int first, int count) const {
  Scratch& scratch = *setup_.scratch;
  check(first >= 0 && count > 0 && first + count <= scratch.max_rows_, "rows are in the scratch");
  const auto hidden = static_cast<std::size_t>(setup_.spec->hidden);
  const auto rows = scratch.residual_.subspan(static_cast<std::size_t>(first) * hidden,
                                              static_cast<std::size_t>(count) * hidden);
  const auto normed = first_rows(scratch.normed_, count, setup_.spec->hidden);
  apply_norm(rows, {embeddings().final_norm, embeddings().final_norm_bias}, cpu::Element::kF32,
             normed);
  return normed;
}

std::span<const float> Forward::project_logits(std::span<const int> rows, int tile) const {
  const ModelSpec& spec = *setup_.spec;
  Scratch& scratch = *setup_.scratch;
  const auto count = static_cast<std::int64_t>(rows.size());
  check(count <= scratch.max_logit_rows_, "wanted rows fit the scratch");
  const auto gathered = first_rows(scratch.normed_, count, spec.hidden);
  const auto hidden = static_cast<std::size_t>(spec.hidden);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = scratch.residual_.subspan(static_cast<std::size_t>(rows[i]) * hidden, hidden);
    std::copy(row.begin(), row.end(), gathered.subspan(i * hidden).begin());
  }
  apply_norm(gathered, {embeddings().final_norm, embeddings().final_norm_bias},
             embeddings().output.format.inputs(), gathered);
  const auto logits = first_rows(scratch.logits_, count, spec.vocab);
  if (whole()) {
    multiply(inputs_for(embeddings().output, {.x = gathered}),
             {{&embeddings().output, logits, {.bias = data_or_null(embeddings().output_bias)}}});
    finish_logits(logits);
    return logits;
  }
  const ShardRun& run = setup_.weights->holding.embeddings;
  const auto mine = first_rows(scratch.shard_logits_, run.count * count, shard().vocab);
  if (alone(run)) {
    project_shards(gathered, count);
    assemble(std::array{cpu::ShownRows{run.first, run.count, mine}}, count);
    finish_logits(logits);
    return logits;
  }
  cpu::Exchange& exchange = *setup_.exchange;
  exchange.reuse(cpu::SharedRows::kLogits);
  project_shards(gathered, count);
  exchange.show(cpu::SharedRows::kLogits, tile, mine);
  if (!setup_.draws) {
    return {};
  }
  assemble(exchange.collect(cpu::SharedRows::kLogits, tile), count);
  exchange.release(cpu::SharedRows::kLogits, tile);
  finish_logits(logits);
  return logits;
}

void Forward::finish_logits(std::span<float> logits) const {
  const Multipliers& multipliers = setup_.spec->multipliers;
  if (multipliers.logits != 1.0F || multipliers.logit_cap > 0.0F) {
    cpu::scale_and_cap(*setup_.team, multipliers.logits, multipliers.logit_cap, logits);
  }
}

// Computes the logits of this device's rows of the vocabulary, shard after shard.
void Forward::project_shards(std::span<const float> normed, std::int64_t count) const {
  const ShardRun& run = setup_.weights->holding.embeddings;
  const Inputs x = inputs_for(embeddings().output, {.x = normed});
  const std::int64_t floats = count * shard().vocab;
  for (int i = 0; i < run.count; ++i) {
    const int shard = run.first + i;
    const EmbeddingWeights& weights = setup_.weights->embeddings[static_cast<std::size_t>(shard)];
    multiply(x, {{&weights.output,
                  setup_.scratch->shard_logits_.subspan(static_cast<std::size_t>(i * floats),
                                                        static_cast<std::size_t>(floats)),
                  {.bias = data_or_null(weights.output_bias)}}});
  }
}

// Puts the columns of all shards in the order of the vocabulary.
void Forward::assemble(std::span<const cpu::ShownRows> shown, std::int64_t count) const {
  const auto vocab = static_cast<std::size_t>(setup_.spec->vocab);
  const auto each = static_cast<std::size_t>(shard().vocab);
  const auto rows = static_cast<std::size_t>(count);
  setup_.team->run(count, [&](std::int64_t row, int) {
    const auto at = static_cast<std::size_t>(row);
    const auto out = setup_.scratch->logits_.subspan(at * vocab, vocab);
    for (const cpu::ShownRows& piece : shown) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(piece.shards); ++i) {
        const std::size_t first = (static_cast<std::size_t>(piece.first_shard) + i) * each;
        const std::size_t width = first < vocab ? std::min(each, vocab - first) : 0;
        const auto from = piece.rows.subspan((i * rows + at) * each, width);
        std::copy(from.begin(), from.end(),
                  out.begin() + static_cast<std::ptrdiff_t>(std::min(first, vocab)));
      }
    }
  });
}

}  // namespace protean
