#include "model/forward.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/units.h"

namespace protean {
namespace {

constexpr std::int64_t kAlignmentFloats = 16;  // 64 bytes

std::span<float> rows_of(std::span<float> buffer, std::int64_t rows, std::int64_t width) {
  return buffer.first(static_cast<std::size_t>(rows * width));
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
                                const ShardRun& shards) {
  check(max_rows > 0 && max_logit_rows > 0, "scratch is for at least one row");
  const ModelSpec shard = shard_spec(spec, shards.of);
  Scratch scratch;
  scratch.max_rows_ = max_rows;
  scratch.max_logit_rows_ = max_logit_rows;
  const std::pair<std::span<float>*, std::int64_t> buffers[] = {
      {&scratch.residual_, std::int64_t{max_rows} * spec.hidden},
      {&scratch.normed_, std::int64_t{std::max(max_rows, max_logit_rows)} * spec.hidden},
      {&scratch.q_, max_rows * query_width(shard)},
      {&scratch.k_, max_rows * kv_width(shard)},
      {&scratch.v_, max_rows * kv_width(shard)},
      {&scratch.mixed_, max_rows * query_width(shard)},
      {&scratch.gate_, std::int64_t{max_rows} * shard.ffn},
      {&scratch.up_, std::int64_t{max_rows} * shard.ffn},
      {&scratch.arranged_, arranged_floats(shard, max_rows, max_logit_rows)},
      {&scratch.partial_, std::int64_t{shards.whole() ? 0 : shards.count} * max_rows * spec.hidden},
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
  const ShardRun& shards = parts.weights->shards;
  check(parts.all_reduce != nullptr || shards.count == shards.of,
        "shards that are elsewhere are added by all_reduce");
  check(parts.observer == nullptr || shards.whole(), "what is observed is whole");
}

void Forward::embed(const ForwardBatch& batch) const {
  check(batch.rows() > 0 && batch.rows() <= parts_.scratch->max_rows_,
        "a batch has at least one row and fits the scratch");
  check(batch.positions.size() == batch.tokens.size(), "every row has a position");
  cpu::gather_rows(parts_.weights->embeddings.embedding, batch.tokens,
                   rows_of(parts_.scratch->residual_, batch.rows(), parts_.spec->hidden));
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

std::span<float> Forward::residual(std::int64_t rows) const {
  check(rows <= parts_.scratch->max_rows_, "rows are in the scratch");
  return rows_of(parts_.scratch->residual_, rows, parts_.spec->hidden);
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
cpu::RowSource Forward::normalised(std::int64_t rows, std::span<const float> norm,
                                   const cpu::WeightFormat& format) const {
  const auto residual = rows_of(parts_.scratch->residual_, rows, parts_.spec->hidden);
  const cpu::RowSource source{.x = residual, .norm = {norm, parts_.spec->norm_eps}};
  if (format.int8_inputs() && parts_.observer == nullptr) {
    return source;
  }
  const auto normed = rows_of(parts_.scratch->normed_, rows, parts_.spec->hidden);
  cpu::rms_norm(*parts_.team, residual, source.norm, format.inputs(), normed);
  return {.x = normed};
}

// Returns the input of `down`. If there is no observer and it pays, SwiGLU and quantisation are
// fused with the products of gate and up.
Forward::Inputs Forward::gated(const cpu::RowSource& source, const LayerWeights& weights,
                               int layer) const {
  const Scratch& scratch = *parts_.scratch;
  const std::int64_t rows = std::ssize(source.x) / shard().hidden;
  const Inputs x = inputs_for(weights.gate, source);
  const auto* const integers = std::get_if<cpu::Int8Rows>(&x);
  if (integers != nullptr && parts_.observer == nullptr &&
      arranged_floats(rows, shard().ffn) <= std::ssize(scratch.up_)) {
    const auto made =
        cpu::matmul_gated(*parts_.team, *integers, {&weights.gate, &weights.up, &weights.down},
                          std::as_writable_bytes(scratch.up_));
    if (made) {
      return *made;
    }
  }
  const auto gate = rows_of(scratch.gate_, rows, shard().ffn);
  const auto up = rows_of(scratch.up_, rows, shard().ffn);
  multiply(x, {{&weights.gate, gate, {}}, {&weights.up, up, {}}});
  cpu::swiglu(*parts_.team, gate, up, weights.down.format.inputs(), gate);
  observe(layer, LayerInput::kDown, gate);
  return inputs_for(weights.down, {.x = gate});
}

void Forward::multiply(const Inputs& x, std::initializer_list<cpu::MatmulTarget> targets) const {
  std::visit([&](const auto& rows) { cpu::matmul(*parts_.team, rows, targets); }, x);
}

void Forward::attend(const ForwardBatch& batch, int layer) const {
  const ModelSpec& spec = *parts_.spec;
  Scratch& scratch = *parts_.scratch;
  const std::span<const LayerWeights> shards = parts_.weights->layer(layer);
  const std::int64_t rows = batch.rows();
  const auto mixed = rows_of(scratch.mixed_, rows, query_width(shard()));
  const bool windowed = layer >= spec.attention.first_windowed_layer;

  const cpu::RowSource x = normalised(rows, shards[0].attention_norm, shards[0].query.format);
  observe(layer, LayerInput::kAttention, x.x);
  cpu::KvLayer kv = parts_.kv[static_cast<std::size_t>(layer)];
  kv.kv_heads = shard().attention.kv_heads;
  for (int i = 0; i < static_cast<int>(shards.size()); ++i) {
    const LayerWeights& weights = shards[static_cast<std::size_t>(i)];
    project_heads(x, weights);
    rotate_heads(batch, weights);
    cpu::store_kv(*parts_.team, kv, batch.slices, rows_of(scratch.k_, rows, kv_width(shard())),
                  rows_of(scratch.v_, rows, kv_width(shard())));
    cpu::attention(*parts_.team, kv, batch.slices,
                   {.heads = shard().attention.heads,
                    .window = windowed ? spec.attention.sliding_window : 0,
                    .element = weights.attention_output.format.inputs()},
                   {rows_of(scratch.q_, rows, query_width(shard())), mixed});
    observe(layer, LayerInput::kAttentionOutput, mixed);
    multiply_out(inputs_for(weights.attention_output, {.x = mixed}), weights.attention_output,
                 weights.attention_output_bias, i);
    kv.base += kv.kv_heads * kv.slot_bytes();
  }
  add_shards(rows);
}

void Forward::project_heads(const cpu::RowSource& source, const LayerWeights& weights) const {
  Scratch& scratch = *parts_.scratch;
  const std::int64_t rows = std::ssize(source.x) / shard().hidden;
  const Inputs x = inputs_for(weights.query, source);
  multiply(x, {{&weights.query,
                rows_of(scratch.q_, rows, query_width(shard())),
                {.bias = bias_of(weights.query_bias)}},
               {&weights.key,
                rows_of(scratch.k_, rows, kv_width(shard())),
                {.bias = bias_of(weights.key_bias)}},
               {&weights.value,
                rows_of(scratch.v_, rows, kv_width(shard())),
                {.bias = bias_of(weights.value_bias)}}});
}

// Normalises and rotates queries and keys. They feed no matrix product, so they stay f32.
void Forward::rotate_heads(const ForwardBatch& batch, const LayerWeights& weights) const {
  const auto q = rows_of(parts_.scratch->q_, batch.rows(), query_width(shard()));
  const auto k = rows_of(parts_.scratch->k_, batch.rows(), kv_width(shard()));
  if (!weights.query_norm.empty()) {
    const auto f32 = cpu::Element::kF32;
    cpu::rms_norm(*parts_.team, q, {weights.query_norm, shard().norm_eps}, f32, q);
    cpu::rms_norm(*parts_.team, k, {weights.key_norm, shard().norm_eps}, f32, k);
  }
  cpu::rope(*parts_.team, q, shard().attention.heads, batch.positions, parts_.rope);
  cpu::rope(*parts_.team, k, shard().attention.kv_heads, batch.positions, parts_.rope);
}

void Forward::feed_forward(const ForwardBatch& batch, int layer) const {
  const std::span<const LayerWeights> shards = parts_.weights->layer(layer);
  const std::int64_t rows = batch.rows();
  const cpu::RowSource normed = normalised(rows, shards[0].mlp_norm, shards[0].gate.format);
  observe(layer, LayerInput::kMlp, normed.x);
  for (int i = 0; i < static_cast<int>(shards.size()); ++i) {
    const LayerWeights& weights = shards[static_cast<std::size_t>(i)];
    multiply_out(gated(normed, weights, layer), weights.down, {}, i);
  }
  add_shards(rows);
}

// Multiplies the output matrix of a half. A single shard adds to the residual stream directly;
// several write addends, which add_shards() sums in a fixed tree.
void Forward::multiply_out(const Inputs& x, const cpu::PackedMatrix& matrix,
                           std::span<const float> bias, int index) const {
  const std::int64_t rows = std::visit([](const auto& of) { return of.blocks.rows; }, x);
  const std::int64_t floats = rows * shard().hidden;
  const bool whole = parts_.weights->shards.whole();
  const auto out = whole
                       ? parts_.scratch->residual_.first(static_cast<std::size_t>(floats))
                       : parts_.scratch->partial_.subspan(static_cast<std::size_t>(index * floats),
                                                          static_cast<std::size_t>(floats));
  multiply(x, {{&matrix, out, {.bias = bias_of(bias), .accumulate = whole}}});
}

void Forward::add_shards(std::int64_t rows) const {
  const ShardRun& shards = parts_.weights->shards;
  if (shards.whole()) {
    return;
  }
  Scratch& scratch = *parts_.scratch;
  const auto partial = rows_of(scratch.partial_, rows, shard().hidden);
  cpu::sum_pieces(*parts_.team, rows_of(scratch.partial_, shards.count * rows, shard().hidden),
                  shards.count);
  if (parts_.all_reduce) {
    parts_.all_reduce(partial);
  }
  cpu::add(*parts_.team, partial, rows_of(scratch.residual_, rows, shard().hidden));
}

std::span<const float> Forward::normalise(int first, int count) const {
  Scratch& scratch = *parts_.scratch;
  check(first >= 0 && count > 0 && first + count <= scratch.max_rows_, "rows are in the scratch");
  const auto hidden = static_cast<std::size_t>(parts_.spec->hidden);
  const auto rows = scratch.residual_.subspan(static_cast<std::size_t>(first) * hidden,
                                              static_cast<std::size_t>(count) * hidden);
  const auto normed = rows_of(scratch.normed_, count, parts_.spec->hidden);
  cpu::rms_norm(*parts_.team, rows, {parts_.weights->embeddings.final_norm, parts_.spec->norm_eps},
                cpu::Element::kF32, normed);
  return normed;
}

std::span<const float> Forward::project_logits(std::span<const int> rows) const {
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
  cpu::rms_norm(*parts_.team, gathered, {parts_.weights->embeddings.final_norm, spec.norm_eps},
                parts_.weights->embeddings.output.format.inputs(), gathered);
  const auto logits = rows_of(scratch.logits_, count, spec.vocab);
  multiply(inputs_for(parts_.weights->embeddings.output, {.x = gathered}),
           {{&parts_.weights->embeddings.output, logits, {}}});
  return logits;
}

}  // namespace protean
