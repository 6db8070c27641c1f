#include "model/forward.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "cost/shards.h"

namespace protean {
namespace {

constexpr std::int64_t kAlignmentFloats = 16;  // 64 bytes

std::span<float> rows_of(std::span<float> buffer, std::int64_t rows, std::int64_t width) {
  return buffer.first(static_cast<std::size_t>(rows * width));
}

// Returns the rows of the index-th shard in a buffer of [shard][rows][width].
std::span<float> shard_rows(std::span<float> buffer, std::int64_t rows, std::int64_t width,
                            int index) {
  return buffer.subspan(static_cast<std::size_t>(index * rows * width),
                        static_cast<std::size_t>(rows * width));
}

// Names the partial sums of a half of a layer.
cpu::SharedRows sums_of(Component half) {
  return half == Component::kAttention ? cpu::SharedRows::kAttention : cpu::SharedRows::kMlp;
}

const float* bias_of(std::span<const float> bias) {
  return bias.empty() ? nullptr : bias.data();
}

std::int64_t query_width(const ModelSpec& spec) {
  return std::int64_t{spec.attention.heads} * spec.attention.head_dim;
}

std::int64_t kv_width(const ModelSpec& spec) {
  return std::int64_t{spec.attention.kv_heads} * spec.attention.head_dim;
}

std::int64_t arranged_floats(std::int64_t rows, std::int64_t inputs) {
  return ceil_div(cpu::arranged_rows_bytes(rows, inputs), std::int64_t{sizeof(float)});
}

// Returns the floats for the arranged inputs of a step's products. The input of `down` goes into
// the buffer of `up` unless it does not fit there.
std::int64_t arranged_floats(const ModelSpec& shard, int max_rows, int max_logit_rows) {
  const std::int64_t widest = std::max(std::int64_t{shard.hidden}, query_width(shard));
  const std::int64_t last = arranged_floats(max_rows, shard.ffn);
  const bool last_fits = last <= std::int64_t{max_rows} * shard.ffn;
  return std::max({arranged_floats(max_rows, widest), last_fits ? 0 : last,
                   arranged_floats(max_logit_rows, shard.hidden)});
}

}  // namespace

Result<Scratch> Scratch::create(const ModelSpec& spec, int max_rows, int max_logit_rows,
                                const DeviceShare& share) {
  check(max_rows > 0 && max_logit_rows > 0, "scratch is for at least one row");
  const ModelSpec shard = shard_spec(spec, share.shards);
  const bool whole = share.shards == 1;
  const std::int64_t levels = whole ? 0 : partial_sums(share.held) + (share.exchanges ? 1 : 0);
  Scratch scratch;
  scratch.max_rows_ = max_rows;
  scratch.max_logit_rows_ = max_logit_rows;
  const std::pair<std::span<float>*, std::int64_t> buffers[] = {
      {&scratch.residual_, std::int64_t{max_rows} * spec.hidden},
      {&scratch.normed_, std::int64_t{std::max(max_rows, max_logit_rows)} * spec.hidden},
      {&scratch.q_, share.held * max_rows * query_width(shard)},
      {&scratch.k_, share.held * max_rows * kv_width(shard)},
      {&scratch.v_, share.held * max_rows * kv_width(shard)},
      {&scratch.mixed_, max_rows * query_width(shard)},
      {&scratch.gate_, std::int64_t{share.held} * max_rows * shard.ffn},
      {&scratch.up_, std::int64_t{share.held} * max_rows * shard.ffn},
      {&scratch.arranged_, arranged_floats(shard, max_rows, max_logit_rows)},
      {&scratch.partial_, levels * max_rows * spec.hidden},
      {&scratch.shard_logits_, std::int64_t{whole ? 0 : share.held} * max_logit_rows * shard.vocab},
      {&scratch.logits_, std::int64_t{max_logit_rows} * spec.vocab},
  };
  std::int64_t floats = 0;
  for (const auto& [buffer, size] : buffers) {
    floats += round_up(size, kAlignmentFloats);
  }
  Result<cpu::Region> region = cpu::Region::map(floats * std::int64_t{sizeof(float)});
  if (!region) {
    return region.error();
  }
  scratch.memory_ = std::move(*region);
  auto* next = reinterpret_cast<float*>(scratch.memory_.data());
  for (const auto& [buffer, size] : buffers) {
    *buffer = std::span(next, static_cast<std::size_t>(size));
    next += round_up(size, kAlignmentFloats);
  }
  return scratch;
}

Forward::Forward(const Parts& parts) : parts_(parts) {
  check(parts.team != nullptr && parts.spec != nullptr && parts.weights != nullptr &&
            parts.scratch != nullptr,
        "a forward needs all its parts");
  check(parts.observer == nullptr || parts.weights->shards == 1, "what is observed is whole");
}

void Forward::embed(const ForwardBatch& batch) const {
  check(batch.rows() > 0, "a batch has at least one row");
  check(batch.positions.size() == batch.tokens.size(), "every row has a position");
  const auto residual = this->residual(batch.rows(), batch.first_row);
  if (whole()) {
    cpu::gather_rows(parts_.weights->embeddings.front().embedding, batch.tokens, residual);
    return;
  }
  const auto width = static_cast<std::size_t>(parts_.spec->hidden);
  const ShardRun& run = parts_.weights->holding.embeddings;
  for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
    const int owner = batch.tokens[row] / shard().vocab;
    if (run.has(owner)) {
      const TokenId id = batch.tokens[row] % shard().vocab;
      cpu::gather_rows(parts_.weights->embeddings[static_cast<std::size_t>(owner)].embedding,
                       {&id, 1}, residual.subspan(row * width, width));
    }
  }
  if (!alone(run)) {
    gather_missing(batch);
  }
}

// Copies the rows of tokens that other devices hold. Each device writes only rows that no other one
// reads from it.
void Forward::gather_missing(const ForwardBatch& batch) const {
  const auto residual = this->residual(batch.rows(), batch.first_row);
  const auto width = static_cast<std::size_t>(parts_.spec->hidden);
  cpu::Exchange& exchange = *parts_.exchange;
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

void Forward::run_layers(const ForwardBatch& batch, LayerRange range) const {
  check(range.first >= 0 && range.count >= 0 &&
            range.first + range.count <= parts_.weights->layer_count(),
        "layers exist");
  for (int layer = range.first; layer < range.first + range.count; ++layer) {
    attend(batch, layer);
    feed_forward(batch, layer);
  }
}

void Forward::run_half(const ForwardBatch& batch, int layer, Component half) const {
  check(layer >= 0 && layer < parts_.weights->layer_count() && half != Component::kEmbeddings,
        "it is half of a layer that exists");
  if (half == Component::kAttention) {
    attend(batch, layer);
  } else {
    feed_forward(batch, layer);
  }
}

std::span<float> Forward::residual(std::int64_t rows, std::int64_t first) const {
  check(first >= 0 && first + rows <= parts_.scratch->max_rows_, "rows are in the scratch");
  return rows_of(parts_.scratch->residual_, first + rows, parts_.spec->hidden)
      .subspan(static_cast<std::size_t>(first * parts_.spec->hidden));
}

void Forward::observe(int layer, LayerInput which, std::span<const float> rows) const {
  if (parts_.observer != nullptr) {
    parts_.observer->on_input(layer, which, rows);
  }
}

// Arranges rows for a product. If the arranged buffer is too small (the input of `down`), uses the
// buffer of `up`.
Forward::Inputs Forward::inputs_for(const cpu::PackedMatrix& weights,
                                    const cpu::RowSource& rows) const {
  const Scratch& scratch = *parts_.scratch;
  const std::int64_t count = std::ssize(rows.x) / weights.inputs;
  const bool fits = arranged_floats(count, weights.inputs) <= std::ssize(scratch.arranged_);
  const auto memory = std::as_writable_bytes(fits ? scratch.arranged_ : scratch.up_);
  if (weights.format.int8_inputs()) {
    return cpu::quantize_rows(*parts_.team, rows, weights, memory);
  }
  check(!rows.made(), "only integers are made as rows are read");
  return cpu::arrange_rows(*parts_.team, rows.x, weights, memory);
}

// Returns the normalised residual stream. With integer activations and no observer the norm is
// applied while rows are quantised.
cpu::RowSource Forward::normalised(std::span<const float> residual, std::span<const float> norm,
                                   const cpu::WeightFormat& format) const {
  const cpu::RowSource source{.x = residual, .norm = {norm, parts_.spec->norm_eps}};
  if (format.int8_inputs() && parts_.observer == nullptr) {
    return source;
  }
  const auto normed = parts_.scratch->normed_.first(residual.size());
  cpu::rms_norm(*parts_.team, residual, source.norm, format.inputs(), normed);
  return {.x = normed};
}

// Returns the input of the index-th shard's `down`. If there is no observer and it pays, SwiGLU and
// quantisation are fused with the products of gate and up. Otherwise the rows lie in gate_.
std::optional<cpu::Int8Rows> Forward::gated(const Inputs& x, const LayerWeights& weights,
                                            const Half& half, int index) const {
  const Scratch& scratch = *parts_.scratch;
  const auto up = shard_rows(scratch.up_, half.rows, shard().ffn, index);
  const auto* const integers = std::get_if<cpu::Int8Rows>(&x);
  if (integers != nullptr && parts_.observer == nullptr &&
      arranged_floats(half.rows, shard().ffn) <= std::ssize(up)) {
    auto made =
        cpu::matmul_gated(*parts_.team, *integers, {&weights.gate, &weights.up, &weights.down},
                          std::as_writable_bytes(up));
    if (made) {
      return made;
    }
  }
  const auto gate = shard_rows(scratch.gate_, half.rows, shard().ffn, index);
  multiply(x, {{&weights.gate, gate, {}}, {&weights.up, up, {}}});
  cpu::swiglu(*parts_.team, gate, up, weights.down.format.inputs(), gate);
  observe(half.layer, LayerInput::kDown, gate);
  return std::nullopt;
}

void Forward::multiply(const Inputs& x, std::initializer_list<cpu::MatmulTarget> targets) const {
  std::visit([&](const auto& rows) { cpu::matmul(*parts_.team, rows, targets); }, x);
}

void Forward::attend(const ForwardBatch& batch, int layer) const {
  const ModelSpec& spec = *parts_.spec;
  Scratch& scratch = *parts_.scratch;
  const Half half{layer, Component::kAttention, batch.rows(), batch.first_row};
  const ShardRun& run = run_of(half);
  const std::int64_t rows = batch.rows();
  const auto mixed = rows_of(scratch.mixed_, rows, query_width(shard()));
  const bool windowed = layer >= spec.attention.first_windowed_layer;

  const LayerWeights& first = parts_.weights->shard(layer, run.first);
  const cpu::RowSource x = normalised(residual(half), first.attention_norm, first.query.format);
  observe(layer, LayerInput::kAttention, x.x);
  const Inputs inputs = inputs_for(first.query, x);  // which all shards share
  for (int i = 0; i < run.count; ++i) {
    project_heads(inputs, half, i);
  }
  cpu::KvLayer kv = parts_.kv[static_cast<std::size_t>(layer)];
  kv.kv_heads = shard().attention.kv_heads;
  for (int i = 0; i < run.count; ++i) {
    const LayerWeights& weights = parts_.weights->shard(layer, run.first + i);
    const HeadRows heads = heads_of(rows, i);
    rotate_heads(batch, weights, heads);
    cpu::store_kv(*parts_.team, kv, batch.slices, heads.k, heads.v);
    cpu::attention(*parts_.team, kv, batch.slices,
                   {.heads = shard().attention.heads,
                    .window = windowed ? spec.attention.sliding_window : 0,
                    .element = weights.attention_output.format.inputs()},
                   {heads.q, mixed});
    observe(layer, LayerInput::kAttentionOutput, mixed);
    multiply_out(inputs_for(weights.attention_output, {.x = mixed}), weights.attention_output,
                 weights.attention_output_bias, half, i);
    kv.base += kv.kv_heads * kv.slot_bytes();
  }
  add_shards(half);
}

// The queries, keys and values of the index-th shard here.
Forward::HeadRows Forward::heads_of(std::int64_t rows, int index) const {
  const Scratch& scratch = *parts_.scratch;
  return {shard_rows(scratch.q_, rows, query_width(shard()), index),
          shard_rows(scratch.k_, rows, kv_width(shard()), index),
          shard_rows(scratch.v_, rows, kv_width(shard()), index)};
}

void Forward::project_heads(const Inputs& x, const Half& half, int index) const {
  const LayerWeights& weights = parts_.weights->shard(half.layer, run_of(half).first + index);
  const HeadRows heads = heads_of(half.rows, index);
  multiply(x, {{&weights.query, heads.q, {.bias = bias_of(weights.query_bias)}},
               {&weights.key, heads.k, {.bias = bias_of(weights.key_bias)}},
               {&weights.value, heads.v, {.bias = bias_of(weights.value_bias)}}});
}

// Normalises and rotates queries and keys. They feed no matrix product, so they stay f32.
void Forward::rotate_heads(const ForwardBatch& batch, const LayerWeights& weights,
                           const HeadRows& heads) const {
  if (!weights.query_norm.empty()) {
    const auto f32 = cpu::Element::kF32;
    cpu::rms_norm(*parts_.team, heads.q, {weights.query_norm, shard().norm_eps}, f32, heads.q);
    cpu::rms_norm(*parts_.team, heads.k, {weights.key_norm, shard().norm_eps}, f32, heads.k);
  }
  cpu::rope(*parts_.team, heads.q, shard().attention.heads, batch.positions, parts_.rope);
  cpu::rope(*parts_.team, heads.k, shard().attention.kv_heads, batch.positions, parts_.rope);
}

void Forward::feed_forward(const ForwardBatch& batch, int layer) const {
  const Half half{layer, Component::kMlp, batch.rows(), batch.first_row};
  const ShardRun& run = run_of(half);
  const LayerWeights& first = parts_.weights->shard(layer, run.first);
  const cpu::RowSource normed = normalised(residual(half), first.mlp_norm, first.gate.format);
  observe(layer, LayerInput::kMlp, normed.x);
  const Inputs inputs = inputs_for(first.gate, normed);  // which all shards share
  std::vector<std::optional<cpu::Int8Rows>> made;
  for (int i = 0; i < run.count; ++i) {
    made.push_back(gated(inputs, parts_.weights->shard(layer, run.first + i), half, i));
  }
  for (int i = 0; i < run.count; ++i) {
    const cpu::PackedMatrix& down = parts_.weights->shard(layer, run.first + i).down;
    const auto& integers = made[static_cast<std::size_t>(i)];
    const auto gate = shard_rows(parts_.scratch->gate_, half.rows, shard().ffn, i);
    multiply_out(integers ? Inputs(*integers) : inputs_for(down, {.x = gate}), down, {}, half, i);
  }
  add_shards(half);
}

// Returns a buffer of the sums over shards. Other devices may read the lowest one, so attention and
// MLP take turns in the first and the last of all buffers, whatever their runs are.
std::span<float> Forward::partial(const Half& half, int level) const {
  const std::int64_t each = std::int64_t{parts_.scratch->max_rows_} * shard().hidden;
  const bool last = level == 0 && half.component == Component::kMlp && parts_.exchange != nullptr;
  const std::int64_t place = last ? std::ssize(parts_.scratch->partial_) / each - 1 : level;
  return parts_.scratch->partial_.subspan(static_cast<std::size_t>(place * each),
                                          static_cast<std::size_t>(half.rows * shard().hidden));
}

// Multiplies the output matrix of the index-th shard here. A single shard adds to the residual
// stream directly. Of several, each odd one is added to the one before it, and each pair of equal
// sums that this completes becomes one: the fixed tree, depth first.
void Forward::multiply_out(const Inputs& x, const cpu::PackedMatrix& matrix,
                           std::span<const float> bias, const Half& half, int index) const {
  if (whole()) {
    multiply(x, {{&matrix, residual(half), {.bias = bias_of(bias), .accumulate = true}}});
    return;
  }
  if (index == 0 && parts_.exchange != nullptr) {
    parts_.exchange->reuse(sums_of(half.component));
  }
  const bool odd = index % 2 == 1;
  int level = std::popcount(static_cast<unsigned>(odd ? index - 1 : index));
  multiply(x, {{&matrix, partial(half, level), {.bias = bias_of(bias), .accumulate = odd}}});
  for (int pairs = (index + 1) / 2; odd && pairs % 2 == 0; pairs /= 2, --level) {
    cpu::add(*parts_.team, partial(half, level), partial(half, level - 1));
  }
}

void Forward::add_shards(const Half& half) const {
  if (whole()) {
    return;
  }
  const std::span<float> mine = partial(half, 0);
  if (alone(run_of(half))) {
    cpu::add(*parts_.team, mine, residual(half));
    return;
  }
  const auto which =
      half.component == Component::kAttention ? cpu::SharedRows::kAttention : cpu::SharedRows::kMlp;
  cpu::Exchange& exchange = *parts_.exchange;
  exchange.show(which, half.layer, mine);
  cpu::add_partial_sums(*parts_.team, exchange.collect(which, half.layer), residual(half));
  exchange.release(which, half.layer);
}

const EmbeddingWeights& Forward::embeddings() const {
  const ModelWeights& weights = *parts_.weights;
  return weights.embeddings[static_cast<std::size_t>(weights.holding.embeddings.first)];
}

std::span<const float> Forward::normalise(int first, int count) const {
  Scratch& scratch = *parts_.scratch;
  check(first >= 0 && count > 0 && first + count <= scratch.max_rows_, "rows are in the scratch");
  const auto hidden = static_cast<std::size_t>(parts_.spec->hidden);
  const auto rows = scratch.residual_.subspan(static_cast<std::size_t>(first) * hidden,
                                              static_cast<std::size_t>(count) * hidden);
  const auto normed = rows_of(scratch.normed_, count, parts_.spec->hidden);
  cpu::rms_norm(*parts_.team, rows, {embeddings().final_norm, parts_.spec->norm_eps},
                cpu::Element::kF32, normed);
  return normed;
}

std::span<const float> Forward::project_logits(std::span<const int> rows, int tile) const {
  const ModelSpec& spec = *parts_.spec;
  Scratch& scratch = *parts_.scratch;
  const auto count = static_cast<std::int64_t>(rows.size());
  check(count <= scratch.max_logit_rows_, "wanted rows fit the scratch");
  const auto gathered = rows_of(scratch.normed_, count, spec.hidden);
  const auto hidden = static_cast<std::size_t>(spec.hidden);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = scratch.residual_.subspan(static_cast<std::size_t>(rows[i]) * hidden, hidden);
    std::copy(row.begin(), row.end(), gathered.subspan(i * hidden).begin());
  }
  cpu::rms_norm(*parts_.team, gathered, {embeddings().final_norm, spec.norm_eps},
                embeddings().output.format.inputs(), gathered);
  const auto logits = rows_of(scratch.logits_, count, spec.vocab);
  if (whole()) {
    multiply(inputs_for(embeddings().output, {.x = gathered}),
             {{&embeddings().output, logits, {}}});
    return logits;
  }
  const ShardRun& run = parts_.weights->holding.embeddings;
  const auto mine = rows_of(scratch.shard_logits_, run.count * count, shard().vocab);
  if (alone(run)) {
    project_shards(gathered, count);
    assemble(std::array{cpu::ShownRows{run.first, run.count, mine}}, count);
    return logits;
  }
  cpu::Exchange& exchange = *parts_.exchange;
  exchange.reuse(cpu::SharedRows::kLogits);
  project_shards(gathered, count);
  exchange.show(cpu::SharedRows::kLogits, tile, mine);
  if (!parts_.draws) {
    return {};
  }
  assemble(exchange.collect(cpu::SharedRows::kLogits, tile), count);
  exchange.release(cpu::SharedRows::kLogits, tile);
  return logits;
}

// Computes the logits of this device's rows of the vocabulary, shard after shard.
void Forward::project_shards(std::span<const float> normed, std::int64_t count) const {
  const ShardRun& run = parts_.weights->holding.embeddings;
  const Inputs x = inputs_for(embeddings().output, {.x = normed});
  const std::int64_t floats = count * shard().vocab;
  for (int i = 0; i < run.count; ++i) {
    const int shard = run.first + i;
    const EmbeddingWeights& weights = parts_.weights->embeddings[static_cast<std::size_t>(shard)];
    multiply(x, {{&weights.output,
                  parts_.scratch->shard_logits_.subspan(static_cast<std::size_t>(i * floats),
                                                        static_cast<std::size_t>(floats)),
                  {}}});
  }
}

// Puts the columns of all shards in the order of the vocabulary.
void Forward::assemble(std::span<const cpu::ShownRows> shown, std::int64_t count) const {
  const auto vocab = static_cast<std::size_t>(parts_.spec->vocab);
  const auto each = static_cast<std::size_t>(shard().vocab);
  const auto rows = static_cast<std::size_t>(count);
  parts_.team->run(count, [&](std::int64_t row, int) {
    const auto at = static_cast<std::size_t>(row);
    const auto out = parts_.scratch->logits_.subspan(at * vocab, vocab);
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
