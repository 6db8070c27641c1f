#include "model/forward.h"

#include <algorithm>
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

cpu::Activation kernel_of(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return cpu::Activation::kSilu;
    case Activation::kGelu:
      return cpu::Activation::kGelu;
    case Activation::kGeluTanh:
      return cpu::Activation::kGeluTanh;
    case Activation::kRelu:
      return cpu::Activation::kRelu;
  }
  return cpu::Activation::kSilu;
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
      {&scratch.squares_,
       spec.attention.qk_norm_over_heads && !whole ? (share.held + 2) * 2 * max_rows : 0},
      {&scratch.mixed_, max_rows * query_width(shard)},
      {&scratch.gate_, std::int64_t{share.held} * max_rows * shard.ffn},
      {&scratch.up_, std::int64_t{share.held} * max_rows * shard.ffn},
      {&scratch.arranged_, arranged_floats(shard, max_rows, max_logit_rows)},
      {&scratch.partial_, levels * max_rows * spec.hidden},
      {&scratch.shard_logits_, std::int64_t{whole ? 0 : share.held} * max_logit_rows * shard.vocab},
      {&scratch.logits_, std::int64_t{max_logit_rows} * spec.vocab},
      {&scratch.added_, std::int64_t{spec.parallel_halves ? max_rows : 0} * spec.hidden},
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
  if (!spec.parallel_halves) {
    scratch.added_ = scratch.normed_;  // no product reads normed rows when a half's output is made
  }
  return scratch;
}

Forward::Forward(const Setup& setup) : setup_(setup) {
  check(setup.team != nullptr && setup.spec != nullptr && setup.weights != nullptr &&
            setup.scratch != nullptr,
        "a forward needs all its setup");
  check(setup.observer == nullptr || setup.weights->shards == 1, "what is observed is whole");
}

void Forward::run_layers(const ForwardBatch& batch, LayerRange range) const {
  check(range.first >= 0 && range.count >= 0 &&
            range.first + range.count <= setup_.weights->layer_count(),
        "layers exist");
  for (int layer = range.first; layer < range.first + range.count; ++layer) {
    attend(batch, layer);
    feed_forward(batch, layer);
  }
}

void Forward::run_half(const ForwardBatch& batch, int layer, Component half) const {
  check(layer >= 0 && layer < setup_.weights->layer_count() && half != Component::kEmbeddings,
        "it is half of a layer that exists");
  if (half == Component::kAttention) {
    attend(batch, layer);
  } else {
    feed_forward(batch, layer);
  }
}

std::span<float> Forward::residual(std::int64_t rows, std::int64_t first) const {
  check(first >= 0 && first + rows <= setup_.scratch->max_rows_, "rows are in the scratch");
  return rows_of(setup_.scratch->residual_, first + rows, setup_.spec->hidden)
      .subspan(static_cast<std::size_t>(first * setup_.spec->hidden));
}

void Forward::observe(int layer, LayerInput which, std::span<const float> rows) const {
  if (setup_.observer != nullptr) {
    setup_.observer->on_input(layer, which, rows);
  }
}

// Arranges rows for a product. If the arranged buffer is too small (the input of `down`), uses the
// buffer of `up`.
Forward::Inputs Forward::inputs_for(const cpu::PackedMatrix& weights,
                                    const cpu::RowSource& rows) const {
  const Scratch& scratch = *setup_.scratch;
  const std::int64_t count = std::ssize(rows.x) / weights.inputs;
  const bool fits = arranged_floats(count, weights.inputs) <= std::ssize(scratch.arranged_);
  const auto memory = std::as_writable_bytes(fits ? scratch.arranged_ : scratch.up_);
  if (weights.format.int8_inputs()) {
    return cpu::quantize_rows(*setup_.team, rows, weights, memory);
  }
  check(!rows.made(), "only integers are made as rows are read");
  return cpu::arrange_rows(*setup_.team, rows.x, weights, memory);
}

// Applies the model's norm to each row: before a half of a layer, or before the LM head.
void Forward::apply_norm(std::span<const float> rows, const NormWeights& norm, cpu::Element element,
                         std::span<float> out) const {
  const float eps = setup_.spec->norm_eps;
  if (setup_.spec->norms.layer_norm) {
    cpu::layer_norm(*setup_.team, rows, {norm.weight, norm.bias, eps}, element, out);
  } else {
    cpu::rms_norm(*setup_.team, rows, {norm.weight, eps}, element, out);
  }
}

// Returns the input of a half: the normalised residual stream, or the stream itself if the model
// has no norms there. With integer activations and no observer an RMS norm is applied while rows
// are quantised.
cpu::RowSource Forward::normalised(std::span<const float> residual, const NormWeights& norm,
                                   const cpu::WeightFormat& format) const {
  const ModelSpec& spec = *setup_.spec;
  if (format.int8_inputs() && setup_.observer == nullptr) {
    if (!spec.norms.before) {
      return {.x = residual};
    }
    if (!spec.norms.layer_norm) {
      return {.x = residual, .norm = {norm.weight, spec.norm_eps}};
    }
  }
  const auto normed = setup_.scratch->normed_.first(residual.size());
  if (spec.norms.before) {
    apply_norm(residual, norm, format.inputs(), normed);
  } else {
    std::copy(residual.begin(), residual.end(), normed.begin());
    cpu::round_to(format.inputs(), normed);
  }
  return {.x = normed};
}

// Returns the input of the index-th shard's `down`. If there is no observer and it pays, activation
// and arrangement are fused with the products of gate and up. Otherwise the rows lie in gate_.
std::optional<Forward::Inputs> Forward::gated(const Inputs& x, const LayerWeights& weights,
                                              const Half& half, int index) const {
  const Scratch& scratch = *setup_.scratch;
  const MlpSpec& mlp = setup_.spec->mlp;
  const auto up = shard_rows(scratch.up_, half.rows, shard().ffn, index);
  const cpu::Activation activation = kernel_of(mlp.activation);
  if (setup_.observer == nullptr && mlp.gated && !mlp.bias &&
      arranged_floats(half.rows, shard().ffn) <= std::ssize(up)) {
    const auto gate_rows = [&](const auto& rows) -> std::optional<Inputs> {
      return cpu::matmul_gated(*setup_.team, rows,
                               {&weights.gate, &weights.up, &weights.down, activation},
                               std::as_writable_bytes(up));
    };
    if (auto made = std::visit(gate_rows, x)) {
      return made;
    }
  }
  const auto gate = shard_rows(scratch.gate_, half.rows, shard().ffn, index);
  const cpu::Element element = weights.down.format.inputs();
  if (mlp.gated) {
    multiply(x, {{&weights.gate, gate, {.bias = bias_of(weights.mlp_bias.gate)}},
                 {&weights.up, up, {.bias = bias_of(weights.mlp_bias.up)}}});
  } else {
    multiply(x, {{&weights.up, gate, {.bias = bias_of(weights.mlp_bias.up)}}});
  }
  const auto factor = mlp.gated ? std::span<const float>(up) : std::span<const float>();
  cpu::activate(*setup_.team, {gate, factor, activation}, element, gate);
  observe(half.layer, LayerInput::kDown, gate);
  return std::nullopt;
}

void Forward::multiply(const Inputs& x, std::initializer_list<cpu::MatmulTarget> targets) const {
  std::visit([&](const auto& rows) { cpu::matmul(*setup_.team, rows, targets); }, x);
}

void Forward::attend(const ForwardBatch& batch, int layer) const {
  const ModelSpec& spec = *setup_.spec;
  Scratch& scratch = *setup_.scratch;
  const Half half{layer, Component::kAttention, batch.rows(), batch.first_row};
  const ShardRun& run = run_of(half);
  const std::int64_t rows = batch.rows();
  const auto mixed = rows_of(scratch.mixed_, rows, query_width(shard()));

  const LayerWeights& first = setup_.weights->shard(layer, run.first);
  const cpu::RowSource x = normalised(
      residual(half), {first.attention_norm, first.attention_norm_bias}, first.query.format);
  observe(layer, LayerInput::kAttention, x.x);
  const Inputs inputs = inputs_for(first.query, x);  // which all shards share
  for (int i = 0; i < run.count; ++i) {
    project_heads(inputs, half, i);
  }
  if (spec.attention.qk_norm_over_heads && !whole()) {
    normalise_over_heads(half);
  }
  cpu::KvLayer kv = setup_.kv[static_cast<std::size_t>(layer)];
  kv.kv_heads = shard().attention.kv_heads;
  for (int i = 0; i < run.count; ++i) {
    const LayerWeights& weights = setup_.weights->shard(layer, run.first + i);
    const HeadRows heads = heads_of(rows, i);
    rotate_heads(batch, weights, layer, heads);
    cpu::store_kv(*setup_.team, kv, batch.slices, heads.k, heads.v);
    cpu::attention(*setup_.team, kv, batch.slices,
                   {.heads = shard().attention.heads,
                    .window = spec.attention.window_of(layer),
                    .element = weights.attention_output.format.inputs(),
                    .scale = spec.attention.scale,
                    .score_cap = spec.attention.score_cap},
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
  const Scratch& scratch = *setup_.scratch;
  return {shard_rows(scratch.q_, rows, query_width(shard()), index),
          shard_rows(scratch.k_, rows, kv_width(shard()), index),
          shard_rows(scratch.v_, rows, kv_width(shard()), index)};
}

void Forward::project_heads(const Inputs& x, const Half& half, int index) const {
  const LayerWeights& weights = setup_.weights->shard(half.layer, run_of(half).first + index);
  const HeadRows heads = heads_of(half.rows, index);
  multiply(x, {{&weights.query, heads.q, {.bias = bias_of(weights.query_bias)}},
               {&weights.key, heads.k, {.bias = bias_of(weights.key_bias)}},
               {&weights.value, heads.v, {.bias = bias_of(weights.value_bias)}}});
}

// Returns the sums of the squares of all queries and of all keys of each row, [2][rows], over the
// shards of all devices, which are added in the fixed tree.
std::span<const float> Forward::head_squares(const Half& half) const {
  const ShardRun& run = run_of(half);
  const auto squares = [&](int index) {
    return shard_rows(setup_.scratch->squares_, 2, half.rows, index);
  };
  std::vector<cpu::ShownRows> shards;
  for (int i = 0; i < run.count; ++i) {
    const HeadRows heads = heads_of(half.rows, i);
    const std::span<float> sums = squares(i);
    cpu::sum_squares(*setup_.team, heads.q, sums.first(sums.size() / 2));
    cpu::sum_squares(*setup_.team, heads.k, sums.last(sums.size() / 2));
    shards.push_back({run.first + i, 1, sums});
  }
  const auto add_up = [&](std::span<const cpu::ShownRows> shown, int index) {
    const std::span<float> sums = squares(index);
    std::fill(sums.begin(), sums.end(), 0.0F);
    cpu::add_partial_sums(*setup_.team, shown, sums);
    return sums;
  };
  if (alone(run)) {
    return add_up(shards, run.count);
  }
  constexpr auto kSquares = cpu::SharedRows::kHeadSquares;
  cpu::Exchange& exchange = *setup_.exchange;
  exchange.reuse(kSquares);
  exchange.show(kSquares, half.layer, add_up(shards, run.count));
  const std::span<float> all = add_up(exchange.collect(kSquares, half.layer), run.count + 1);
  exchange.release(kSquares, half.layer);
  return all;
}

// Normalises queries and keys of the shards here, if one norm is over the heads of all shards.
void Forward::normalise_over_heads(const Half& half) const {
  const std::span<const float> squares = head_squares(half);
  const ModelSpec& spec = *setup_.spec;
  for (int i = 0; i < run_of(half).count; ++i) {
    const LayerWeights& weights = setup_.weights->shard(half.layer, run_of(half).first + i);
    const HeadRows heads = heads_of(half.rows, i);
    cpu::rms_norm_part(*setup_.team, squares.first(squares.size() / 2), query_width(spec),
                       {weights.query_norm, spec.norm_eps}, heads.q);
    cpu::rms_norm_part(*setup_.team, squares.last(squares.size() / 2), kv_width(spec),
                       {weights.key_norm, spec.norm_eps}, heads.k);
  }
}

// Rotates queries and keys, and normalises each head first if the model does. They feed no matrix
// product, so they stay f32.
void Forward::rotate_heads(const ForwardBatch& batch, const LayerWeights& weights, int layer,
                           const HeadRows& heads) const {
  if (!weights.query_norm.empty() && (whole() || !setup_.spec->attention.qk_norm_over_heads)) {
    const auto f32 = cpu::Element::kF32;
    cpu::rms_norm(*setup_.team, heads.q, {weights.query_norm, shard().norm_eps}, f32, heads.q);
    cpu::rms_norm(*setup_.team, heads.k, {weights.key_norm, shard().norm_eps}, f32, heads.k);
  }
  if (!setup_.spec->attention.rotates(layer)) {
    return;
  }
  const cpu::RopeTable& table = setup_.rope.of(*setup_.spec, layer);
  cpu::rope(*setup_.team, heads.q, shard().attention.heads, batch.positions, table);
  cpu::rope(*setup_.team, heads.k, shard().attention.kv_heads, batch.positions, table);
}

void Forward::feed_forward(const ForwardBatch& batch, int layer) const {
  const Half half{layer, Component::kMlp, batch.rows(), batch.first_row};
  const ShardRun& run = run_of(half);
  const LayerWeights& first = setup_.weights->shard(layer, run.first);
  const cpu::RowSource normed =
      normalised(residual(half), {first.mlp_norm, first.mlp_norm_bias}, first.up.format);
  observe(layer, LayerInput::kMlp, normed.x);
  const Inputs inputs = inputs_for(first.up, normed);  // which all shards share
  std::vector<std::optional<Inputs>> made;
  for (int i = 0; i < run.count; ++i) {
    made.push_back(gated(inputs, setup_.weights->shard(layer, run.first + i), half, i));
  }
  for (int i = 0; i < run.count; ++i) {
    const LayerWeights& weights = setup_.weights->shard(layer, run.first + i);
    const cpu::PackedMatrix& down = weights.down;
    const std::optional<Inputs>& rows = made[static_cast<std::size_t>(i)];
    const auto gate = shard_rows(setup_.scratch->gate_, half.rows, shard().ffn, i);
    multiply_out(rows ? *rows : inputs_for(down, {.x = gate}), down, weights.mlp_bias.down, half,
                 i);
  }
  add_shards(half);
}

// Returns a buffer of the sums over shards. Other devices may read the lowest one, so attention and
// MLP take turns in the first and the last of all buffers, whatever their runs are.
std::span<float> Forward::partial(const Half& half, int level) const {
  const std::int64_t each = std::int64_t{setup_.scratch->max_rows_} * shard().hidden;
  const bool last = level == 0 && half.component == Component::kMlp && setup_.exchange != nullptr;
  const std::int64_t place = last ? std::ssize(setup_.scratch->partial_) / each - 1 : level;
  return setup_.scratch->partial_.subspan(static_cast<std::size_t>(place * each),
                                          static_cast<std::size_t>(half.rows * shard().hidden));
}

std::span<float> Forward::added(const Half& half) const {
  return rows_of(setup_.scratch->added_, half.first_row + half.rows, setup_.spec->hidden)
      .last(static_cast<std::size_t>(half.rows * setup_.spec->hidden));
}

// Returns true if the sum of a half is added to the residual stream as it is.
bool Forward::adds_directly(const Half& half) const {
  const ModelSpec& spec = *setup_.spec;
  const bool waits = spec.parallel_halves && half.component == Component::kAttention;
  return !spec.norms.after && spec.multipliers.residual == 1.0F && !waits;
}

// Adds the sum of a half, which lies in added_, to the residual stream. In models whose halves are
// parallel, the sum of attention stays there until that of the MLP has been added.
void Forward::finish_half(const Half& half) const {
  const ModelSpec& spec = *setup_.spec;
  const bool attention = half.component == Component::kAttention;
  if (adds_directly(half) ? !spec.parallel_halves : spec.parallel_halves) {
    return;
  }
  const std::span<float> added = this->added(half);
  if (spec.norms.after) {
    const LayerWeights& weights = setup_.weights->shard(half.layer, run_of(half).first);
    apply_norm(added, {attention ? weights.post_norm.attention : weights.post_norm.mlp, {}},
               cpu::Element::kF32, added);
  }
  if (spec.multipliers.residual == 1.0F) {
    cpu::add(*setup_.team, added, residual(half));
  } else {
    cpu::add_scaled(*setup_.team, added, spec.multipliers.residual, residual(half));
  }
}

// Multiplies the output matrix of the index-th shard here. A single shard adds to the residual
// stream directly. Of several, each odd one is added to the one before it, and each pair of equal
// sums that this completes becomes one: the fixed tree, depth first.
void Forward::multiply_out(const Inputs& x, const cpu::PackedMatrix& matrix,
                           std::span<const float> bias, const Half& half, int index) const {
  if (whole()) {
    const bool direct = adds_directly(half);
    multiply(x, {{&matrix,
                  direct ? residual(half) : added(half),
                  {.bias = bias_of(bias), .accumulate = direct}}});
    return;
  }
  if (index == 0 && setup_.exchange != nullptr) {
    setup_.exchange->reuse(sums_of(half.component));
  }
  const bool odd = index % 2 == 1;
  int level = std::popcount(static_cast<unsigned>(odd ? index - 1 : index));
  multiply(x, {{&matrix, partial(half, level), {.bias = bias_of(bias), .accumulate = odd}}});
  for (int pairs = (index + 1) / 2; odd && pairs % 2 == 0; pairs /= 2, --level) {
    cpu::add(*setup_.team, partial(half, level), partial(half, level - 1));
  }
}

void Forward::add_shards(const Half& half) const {
  if (!whole()) {
    auto sum = residual(half);
    if (!adds_directly(half)) {
      sum = added(half);
      std::fill(sum.begin(), sum.end(), 0.0F);
    }
    add_shards_to(half, sum);
  }
  finish_half(half);
}

void Forward::add_shards_to(const Half& half, std::span<float> sum) const {
  const std::span<float> mine = partial(half, 0);
  if (alone(run_of(half))) {
    cpu::add(*setup_.team, mine, sum);
    return;
  }
  const auto which =
      half.component == Component::kAttention ? cpu::SharedRows::kAttention : cpu::SharedRows::kMlp;
  cpu::Exchange& exchange = *setup_.exchange;
  exchange.show(which, half.layer, mine);
  cpu::add_partial_sums(*setup_.team, exchange.collect(which, half.layer), sum);
  exchange.release(which, half.layer);
}

}  // namespace protean
