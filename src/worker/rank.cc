#include "worker/rank.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/finite.h"
#include "base/units.h"
#include "worker/pooling.h"

namespace protean {
namespace {

constexpr std::int64_t kCopiedAtOnceBytes = 64 * kKiB;  // piece of a block that a thread copies

Status refuse_unsupported(const WorkerOptions& options, const ModelSpec& spec) {
  const Form& form = options.form;
  if (form.stages.size() != 1 || form.tp_degree != 1) {
    return make_error(ErrorCode::kUnsupported,
                      "a worker runs one stage at TP 1, not '{}': use a form on a single device",
                      to_string(form));
  }
  const std::vector<DeviceSpec> device = {
      {.id = form.stages[0].devices.empty() ? DeviceId{} : form.stages[0].devices[0]}};
  if (Status valid = validate(form, spec, device); !valid) {
    return valid;
  }
  if (options.threads < 1 || options.max_step_tokens < 1 || options.max_positions < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a worker needs at least 1 thread, 1 token per step and 1 position, got {}, "
                      "{} and {}",
                      options.threads, options.max_step_tokens, options.max_positions);
  }
  return {};
}

// A device at TP 1 holds all shards of a layer.
ShardRun shards_of(const Form& form) {
  return {.count = form.largest_tp_degree, .of = form.largest_tp_degree};
}

Result<ModelWeights> load_on_pages(const WorkerOptions& options, const Checkpoint& checkpoint,
                                   const LoadProgress& progress, cpu::PagePool& pool,
                                   LayerPages& layers) {
  const ModelSpec& spec = checkpoint.spec();
  ReadComponent read = options.read_component;
  if (!read) {
    read = [&](const ComponentVariant& which, std::span<std::byte> memory,
               const Pace& pace) -> Result<std::string> {
      const Status loaded = load_component(checkpoint, which, memory.data(), pace);
      return loaded ? Result<std::string>(std::string()) : loaded.error();
    };
  }
  const ShardRun shards = shards_of(options.form);
  ModelWeights weights(spec, spec.layers, shards);
  const std::int64_t total_bytes =
      weight_pages(spec, options.form, pool.page_bytes()) * pool.page_bytes();
  const auto load = [&](int layer, Component component) -> Status {
    const SwapComponent swap{layer, component, precision_of(options.form, layer, component)};
    Result<FilledPages> filled = fill_pages(pool, {spec, swap, shards.of}, read);
    if (!filled) {
      return make_error(filled.error().code, "{}: {}", component_name(layer, component),
                        filled.error().message);
    }
    layers.swap(weights, swap, filled->pages);
    return {};
  };
  if (const Status loaded = load(0, Component::kEmbeddings); !loaded) {
    return loaded.error();
  }
  for (int layer = 0; layer < spec.layers; ++layer) {
    for (const Component half : kLayerHalves) {
      if (const Status loaded = load(layer, half); !loaded) {
        return loaded.error();
      }
    }
    if (progress) {
      progress(layers.bytes(), total_bytes);
    }
  }
  return weights;
}

}  // namespace

struct Rank::Built {
  WorkerOptions options;
  ModelSpec spec;
  ModelWeights weights;
  LayerPages pages;
  std::shared_ptr<KvStore> kv;
  Scratch scratch;
};

Result<std::unique_ptr<Rank>> Rank::create(const WorkerOptions& options,
                                           const Checkpoint& checkpoint,
                                           const LoadProgress& progress, RankPages pages) {
  const ModelSpec& spec = checkpoint.spec();
  if (const Status supported = refuse_unsupported(options, spec); !supported) {
    return supported.error();
  }
  // Memory is allocated before the weights are read, which takes long.
  if (pages.kv == nullptr) {
    Result<std::unique_ptr<KvStore>> kv = KvStore::create(spec, options.form.kv);
    if (!kv) {
      return kv.error();
    }
    pages.kv = std::move(*kv);
  }
  const ShardRun shards = shards_of(options.form);
  Result<Scratch> scratch = Scratch::create(spec, options.max_step_tokens,
                                            std::min(kLogitRows, options.max_step_tokens), shards);
  if (!scratch) {
    return scratch.error();
  }
  LayerPages layers(spec.layers);
  Result<ModelWeights> weights =
      pages.pool == nullptr ? load_weights(checkpoint, options.form.layer_precision,
                                           options.form.embeddings, progress, shards)
                            : load_on_pages(options, checkpoint, progress, *pages.pool, layers);
  if (!weights) {
    return weights.error();
  }
  return std::unique_ptr<Rank>(new Rank({options, spec, std::move(*weights), std::move(layers),
                                         std::move(pages.kv), std::move(*scratch)}));
}

Rank::Rank(Built built)
    : spec_(std::move(built.spec)),
      max_positions_(built.options.max_positions),
      weights_(std::move(built.weights)),
      pages_(std::move(built.pages)),
      kv_(std::move(built.kv)),
      scratch_(std::move(built.scratch)),
      rope_(spec_.rope, spec_.attention.head_dim, max_positions_),
      team_(built.options.threads, std::move(built.options.where)),
      sampler_(spec_.vocab, built.options.threads) {
  positions_.reserve(static_cast<std::size_t>(scratch_.max_rows()));
}

void Rank::check_slice(const StepPlan& plan, const SequenceSlice& slice) const {
  check(slice.token_begin == std::ssize(positions_) && slice.token_count > 0 &&
            slice.token_count <= std::ssize(plan.tokens) - slice.token_begin,
        "the slices of a plan cover its tokens in order");
  const std::int64_t end = std::int64_t{slice.first_position} + slice.token_count;
  check(slice.first_position >= 0 && end <= max_positions_, "positions are within the limit");
  check(slice.block_begin >= 0 && slice.block_count > 0 &&
            slice.block_count <= std::ssize(plan.blocks) - slice.block_begin,
        "a slice's block table is inside its plan");
  check(std::int64_t{slice.block_count} * kv_->block_tokens() >= end,
        "a slice's blocks hold all its tokens");
  check(slice.sample >= -1 && slice.sample < std::ssize(plan.samples), "a slice's sample exists");
  check(slice.score_begin >= 0 && slice.score_count >= 0 &&
            slice.score_count <= std::ssize(plan.scores) - slice.score_begin,
        "a slice's scores are inside its plan");
  for (int i = 0; i < slice.score_count; ++i) {
    const ScoreSpec& score =
        plan.scores[static_cast<std::size_t>(slice.score_begin) + static_cast<std::size_t>(i)];
    check(score.after >= slice.token_begin && score.after < slice.token_begin + slice.token_count,
          "a score is of a token after one of its slice");
    check(score.token >= 0 && score.token < spec_.vocab, "scored tokens are in the vocabulary");
  }
}

void Rank::read_slices(const StepPlan& plan) {
  check(!plan.tokens.empty() && std::ssize(plan.tokens) <= scratch_.max_rows(),
        "a plan has at least one token and no more than the limit");
  for (const TokenId token : plan.tokens) {
    check(token >= 0 && token < spec_.vocab, "tokens are in the vocabulary");
  }
  for (const BlockId block : plan.blocks) {
    check(block >= 0 && block < kv_->blocks(), "blocks exist");
  }
  positions_.clear();
  slices_.clear();
  sampled_rows_.assign(plan.samples.size(), -1);
  std::ptrdiff_t scores = 0;
  for (const SequenceSlice& slice : plan.slices) {
    check_slice(plan, slice);
    check(slice.score_count == 0 || slice.score_begin == scores,
          "the scores of a plan are in the order of its slices");
    scores += slice.score_count;
    slices_.push_back({.first_row = slice.token_begin,
                       .rows = slice.token_count,
                       .first_position = slice.first_position,
                       .blocks = std::span(plan.blocks)
                                     .subspan(static_cast<std::size_t>(slice.block_begin),
                                              static_cast<std::size_t>(slice.block_count))});
    for (int i = 0; i < slice.token_count; ++i) {
      positions_.push_back(slice.first_position + i);
    }
    if (slice.sample >= 0) {
      int& row = sampled_rows_[static_cast<std::size_t>(slice.sample)];
      check(row < 0, "a sample belongs to one slice");
      row = slice.token_begin + slice.token_count - 1;
    }
  }
  check(positions_.size() == plan.tokens.size(), "every token belongs to a slice");
  check(scores == std::ssize(plan.scores), "every score belongs to a slice");
  for (const int row : sampled_rows_) {
    check(row >= 0, "a sample belongs to a slice");
  }
}

StepResult Rank::run(const StepPlan& plan, const LogitsTap& tap) {
  read_slices(plan);
  const Forward forward({.team = &team_,
                         .spec = &spec_,
                         .weights = &weights_,
                         .rope = rope_.view(),
                         .kv = kv_->layers(),
                         .scratch = &scratch_});
  const ForwardBatch batch{.tokens = plan.tokens, .positions = positions_, .slices = slices_};
  forward.embed(batch);
  forward.run_layers(batch, {.first = 0, .count = spec_.layers});

  StepResult result{.id = plan.id};
  for (const SequenceSlice& slice : plan.slices) {
    if (slice.pooling != Pooling::kNone) {
      result.pooled.push_back(pool(slice, forward));
    }
  }
  score(plan, forward, result);
  draw(plan, forward, tap, result);
  fail_unusable(plan, result);
  return result;
}

void Rank::mark_unusable(std::span<const float> logits, std::span<std::uint8_t> rows) {
  const std::size_t width = logits.size() / rows.size();
  team_.run(std::ssize(rows), [&](std::int64_t i, int) {
    const auto row = static_cast<std::size_t>(i);
    rows[row] = all_finite(logits.subspan(row * width, width)) ? 0 : 1;
  });
}

// Fails each request with NaN or infinity where it wants a token, a log-probability or an
// embedding.
void Rank::fail_unusable(const StepPlan& plan, StepResult& result) const {
  std::size_t pooled = 0;
  for (const SequenceSlice& slice : plan.slices) {
    bool unusable =
        slice.sample >= 0 && unusable_samples_[static_cast<std::size_t>(slice.sample)] != 0;
    const auto scores = std::span(unusable_scores_)
                            .subspan(static_cast<std::size_t>(slice.score_begin),
                                     static_cast<std::size_t>(slice.score_count));
    unusable = unusable || std::find(scores.begin(), scores.end(), 1) != scores.end();
    if (slice.pooling != Pooling::kNone) {
      const std::vector<double>& row = result.pooled[pooled++];
      unusable = unusable || !std::all_of(row.begin(), row.end(),
                                          [](double value) { return std::isfinite(value); });
    }
    if (unusable) {
      result.failed.push_back(
          {slice.request,
           "the model computed NaN or infinity: its weights are damaged, or too "
           "large for their precision"});
    }
  }
}

void Rank::draw(const StepPlan& plan, const Forward& forward, const LogitsTap& tap,
                StepResult& result) {
  result.sampled.resize(plan.samples.size());
  unusable_samples_.assign(plan.samples.size(), 0);
  std::size_t told = 0;
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    told = plan.samples[i].top_logprobs >= 0 ? i + 1 : told;
  }
  result.logprobs.resize(told == 0 ? 0 : plan.samples.size());
  const auto most = static_cast<std::size_t>(scratch_.max_logit_rows());
  for (std::size_t first = 0; first < plan.samples.size(); first += most) {
    const std::size_t count = std::min(most, plan.samples.size() - first);
    const auto logits = forward.project_logits(std::span(sampled_rows_).subspan(first, count));
    if (tap) {
      tap(static_cast<int>(first), logits);
    }
    mark_unusable(logits, std::span(unusable_samples_).subspan(first, count));
    const std::span<TokenLogprobs> logprobs = result.logprobs;
    sampler_.sample(team_, {logits, std::span(plan.samples).subspan(first, count), plan.history},
                    std::span(result.sampled).subspan(first, count),
                    told == 0 ? logprobs : logprobs.subspan(first, count));
  }
  result.logprobs.resize(told);
}

// Scores kLogitRows rows at a time: the logits of a whole prompt could take gigabytes.
void Rank::score(const StepPlan& plan, const Forward& forward, StepResult& result) {
  result.scored.resize(plan.scores.size());
  unusable_scores_.assign(plan.scores.size(), 0);
  const auto most = static_cast<std::size_t>(scratch_.max_logit_rows());
  for (std::size_t first = 0; first < plan.scores.size(); first += most) {
    const std::size_t count = std::min(most, plan.scores.size() - first);
    const auto specs = std::span(plan.scores).subspan(first, count);
    scored_rows_.clear();
    for (const ScoreSpec& spec : specs) {
      scored_rows_.push_back(spec.after);
    }
    const auto logits = forward.project_logits(scored_rows_);
    mark_unusable(logits, std::span(unusable_scores_).subspan(first, count));
    sampler_.score(team_, logits, specs, std::span(result.scored).subspan(first, count));
  }
}

std::vector<double> Rank::pool(const SequenceSlice& slice, const Forward& forward) {
  const bool mean = slice.pooling == Pooling::kMean;
  const int count = mean ? slice.token_count : 1;
  const auto rows = forward.normalise(slice.token_begin + slice.token_count - count, count);
  const auto hidden = static_cast<std::size_t>(spec_.hidden);
  std::vector<double> pooled(hidden);
  if (!mean) {
    std::copy(rows.begin(), rows.end(), pooled.begin());
    return pooled;
  }
  add_rows(team_, rows, pooled);
  return pooled;
}

void Rank::swap_component(const SwapComponent& swap, cpu::PageRange& pages) {
  pages_.swap(weights_, swap, pages);
}

void Rank::copy_blocks(const Rank& source, std::span<const BlockMove> moves) {
  const std::int64_t parts = ceil_div(kv_->block_bytes(), kCopiedAtOnceBytes);
  for (const BlockMove& move : moves) {
    team_.run(parts, [&](std::int64_t part, int) { kv_->copy(*source.kv_, move, part, parts); });
  }
}

WorkerMemory Rank::memory() const {
  return {.weight_bytes = weights_.bytes() + pages_.bytes(),
          .kv_bytes = kv_->bytes(),
          .scratch_bytes = scratch_.bytes() + rope_.bytes()};
}

}  // namespace protean
