#include "worker/rank.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/finite.h"
#include "worker/load_turns.h"
#include "worker/pooling.h"

namespace protean {
namespace {

Status refuse_unsupported(const WorkerOptions& options, const ModelSpec& spec, RankPlace place) {
  const Form& form = options.form;
  if (form.group.size() > 1 && place.fabric == nullptr) {
    return make_error(ErrorCode::kUnsupported,
                      "one device alone cannot compute '{}': use a form on a single device",
                      to_string(form));
  }
  std::vector<DeviceSpec> devices;
  for (const Holding& holding : form.group) {
    devices.push_back({.id = holding.device});
  }
  if (Status valid = validate(form, spec, devices); !valid) {
    return valid;
  }
  const int threads = options.devices[static_cast<std::size_t>(place.device)].threads;
  if (threads < 1 || options.max_step_tokens < 1 || options.max_positions < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a worker needs at least 1 thread, 1 token per step and 1 position, got {}, "
                      "{} and {}",
                      threads, options.max_step_tokens, options.max_positions);
  }
  return {};
}

const Holding& holding_of(const WorkerOptions& options, RankPlace place) {
  return options.form.group[static_cast<std::size_t>(place.device)];
}

// What the device's buffers must be enough for, now and after a join.
DeviceShare share_of(const WorkerOptions& options, RankPlace place) {
  const Form& form = options.form;
  return options.joining ? widest_share(form) : share_of(form, holding_of(options, place));
}

// The way through a device of a replica that is not joined.
StepRoute first_route(const WorkerOptions& options, RankPlace place) {
  Formation formation{.form = options.form, .devices = {}, .homes = {{}}};
  const int first = place.on_fabric - place.device;
  for (int device = 0; device < static_cast<int>(options.form.group.size()); ++device) {
    formation.devices.push_back(first + device);
    formation.homes.front().push_back(device);
  }
  return route_of(formation, place.device);
}

// How a rank's weights are loaded.
struct Loading {
  const WorkerOptions& options;
  const Checkpoint& checkpoint;
  const LoadProgress& progress;
  RankPlace place;
  const cpu::MayGoOn& may_go_on;
};

Result<ModelWeights> load_on_pages(const Loading& loading, cpu::PagePool& pool,
                                   LayerPages& layers) {
  const auto& [options, checkpoint, progress, place, may_go_on] = loading;
  const ModelSpec& spec = checkpoint.spec();
  ReadComponent read = options.read_component;
  if (!read) {
    read = [&checkpoint = loading.checkpoint](const ComponentVariant& which,
                                              std::span<std::byte> memory,
                                              const Pace& pace) -> Result<std::string> {
      const Status loaded = load_component(checkpoint, which, memory.data(), pace);
      return loaded ? Result<std::string>(std::string()) : loaded.error();
    };
  }
  ModelWeights weights(spec, holding_of(options, place), options.form.shards);
  const std::int64_t total_pages =
      weight_pages_on(spec, options.form, place.device, pool.page_bytes()) -
      holding_of(options, place).lacking_pages;
  const auto load = [&, &form = options.form](int layer, Component component) -> Status {
    const ShardRun run = shards_kept(form, component, weights.holding.of(layer, component));
    if (run.empty()) {
      return {};
    }
    const SwapComponent swap{layer, component, precision_of(form, layer, component)};
    Result<FilledPages> filled =
        fill_pages(pool, {spec, swap, shards_of(run), form.shards}, read, loading.may_go_on);
    if (!filled) {
      return make_error(filled.error().code, "{}: {}", component_name(layer, component),
                        filled.error().message);
    }
    layers.swap(weights, swap, filled->shards);
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
      progress(layers.bytes(), total_pages * pool.page_bytes());
    }
  }
  return weights;
}

}  // namespace

struct Rank::Built {
  WorkerOptions options;
  ModelSpec spec;
  RankPlace place;
  ModelWeights weights;
  LayerPages pages;
  std::shared_ptr<KvStore> kv;
  Scratch scratch;
};

Result<std::unique_ptr<Rank>> Rank::create(const WorkerOptions& options,
                                           const Checkpoint& checkpoint,
                                           const LoadProgress& progress, RankPages pages,
                                           RankPlace place) {
  const ModelSpec& spec = checkpoint.spec();
  const Form& form = options.form;
  if (const Status supported = refuse_unsupported(options, spec, place); !supported) {
    return supported.error();
  }
  const Holding& holding = holding_of(options, place);
  // Memory is allocated before the weights are read, which takes long.
  if (pages.kv == nullptr) {
    Result<std::unique_ptr<KvStore>> kv = KvStore::create({spec, holding, form.shards, form.kv});
    if (!kv) {
      return kv.error();
    }
    pages.kv = std::move(*kv);
  }
  const int rows =
      std::max(options.max_step_tokens, options.joining ? options.joining->fabric->rows() : 0);
  Result<Scratch> scratch = Scratch::create(
      spec, rows, std::min(kLogitRows, options.max_step_tokens), share_of(options, place));
  if (!scratch) {
    return scratch.error();
  }
  LayerPages layers(spec.layers, form.attention_kept);
  Result<ModelWeights> weights =
      load_in_turns(options.await_turn, [&](const cpu::MayGoOn& may_go_on) {
        return pages.pool == nullptr
                   ? load_weights(checkpoint,
                                  {form.layer_precision, form.embeddings, holding, form.shards},
                                  progress)
                   : load_on_pages({options, checkpoint, progress, place, may_go_on}, *pages.pool,
                                   layers);
      });
  if (!weights) {
    return weights.error();
  }
  return std::unique_ptr<Rank>(
      new Rank({options, spec, place, std::move(*weights), std::move(layers), std::move(pages.kv),
                std::move(*scratch)}));
}

Rank::Rank(Built built)
    : spec_(std::move(built.spec)),
      place_(built.place),
      weights_(std::move(built.weights)),
      pages_(std::move(built.pages)),
      kv_(std::move(built.kv)),
      scratch_(std::move(built.scratch)),
      rope_(spec_, built.options.max_positions),
      team_(built.options.devices[static_cast<std::size_t>(place_.device)].threads,
            built.options.devices[static_cast<std::size_t>(place_.device)].where),
      sampler_(spec_.vocab, team_.threads()),
      rows_({.rows = scratch_.max_rows(),
             .positions = built.options.max_positions,
             .vocab = spec_.vocab,
             .block_tokens = kv_->block_tokens()}) {
  std::vector<int> group;
  for (int device = 0; device < std::ssize(built.options.form.group); ++device) {
    group.push_back(place_.on_fabric - place_.device + device);
  }
  follow(first_route(built.options, place_), std::move(group));
}

void Rank::follow(StepRoute route, std::vector<int> group) {
  route_ = std::move(route);
  if (place_.fabric != nullptr) {
    exchange_.emplace(place_.fabric->board(), place_.on_fabric, route_.members, spec_.layers);
    exchange_->set_group(std::move(group));
    hand_over_.emplace(place_.fabric->mailboxes(), place_.fabric->progress(), *exchange_,
                       place_.on_fabric);
  }
}

// Waits until another device has handed over the rows for a stop: a bubble of the pipeline, in
// which background work has the device for itself, unless others compute on its CPUs meanwhile.
// Devices that share a layer wait too briefly for that.
void Rank::await_rows(int stop, int peer) {
  const bool tells = background_ != nullptr && place_.fabric->has_own_cpus();
  if (tells) {
    background_->step_waits(true);
  }
  hand_over_->await(peer, stop);
  if (tells) {
    background_->step_waits(false);
  }
}

// Takes the rows that this device needs at a stop.
void Rank::take_rows(int stop, const Forward& forward) {
  const std::vector<RowTransfer>& takes = route_.stops[static_cast<std::size_t>(stop)].takes;
  for (const RowTransfer& take : takes) {
    await_rows(stop, take.peer);
    const int first = rows_.first_row(take.home);
    const int rows = rows_.rows(take.home);
    const std::span<const float> from = hand_over_->arrived(first, rows);
    std::copy(from.begin(), from.end(), forward.residual(rows, first).begin());
  }
  if (!takes.empty()) {
    hand_over_->taken(stop);
  }
}

// Sends the rows that others need after a stop.
void Rank::hand_over(int stop, const Forward& forward) {
  const std::vector<RowTransfer>& hands = route_.stops[static_cast<std::size_t>(stop)].hands;
  for (const RowTransfer& hand : hands) {
    const int first = rows_.first_row(hand.home);
    hand_over_->send(hand.peer, hand.taken_last, first,
                     forward.residual(rows_.rows(hand.home), first));
  }
  if (!hands.empty()) {
    hand_over_->sent(stop);
  }
}

// Computes the rows of the stop's homes, unless it is the last one.
void Rank::compute(int stop, const Forward& forward) {
  const auto& [first_home, homes, takes, hands] = route_.stops[static_cast<std::size_t>(stop)];
  if (homes == 0 || stop + 1 == std::ssize(route_.stops)) {
    return;
  }
  const int layer = (stop - 1) / 2;
  const bool attends = stop > 0 && stop % 2 == 1;
  const ForwardBatch batch = rows_.batch(first_home, homes, attends ? kv_->places(layer) : nullptr);
  if (batch.rows() == 0) {
    return;
  }
  if (stop == 0) {
    forward.embed(batch);
  } else {
    forward.run_half(batch, layer, attends ? Component::kAttention : Component::kMlp);
  }
}

std::vector<HomeResult> Rank::run(std::uint64_t step, std::span<const StepPlan> plans,
                                  const LogitsTap& tap) {
  check(plans.size() == route_.draws.size(), "a step has a plan for each home");
  rows_.read(plans, std::max(kv_->blocks(), route_.most_blocks));
  step_ = step;
  tile_ = 0;
  if (exchange_) {
    exchange_->begin_step(step_);
  }
  const Stop& last = route_.stops.back();
  const bool draws = last.homes > 0 && route_.draws[static_cast<std::size_t>(last.first_home)];
  const Forward forward({.team = &team_,
                         .spec = &spec_,
                         .weights = &weights_,
                         .rope = rope_.view(),
                         .kv = kv_->layers(),
                         .scratch = &scratch_,
                         .exchange = exchange_ ? &*exchange_ : nullptr,
                         .draws = draws});
  for (int stop = 0; stop < static_cast<int>(route_.stops.size()) && !broken(); ++stop) {
    take_rows(stop, forward);
    compute(stop, forward);
    hand_over(stop, forward);
    if (exchange_ && stop % 2 == 1 && stop + 1 < std::ssize(route_.stops)) {
      place_.fabric->progress().pass(place_.on_fabric,
                                     cpu::SharedExchange::attended(step_, stop / 2));
    }
  }
  std::vector<HomeResult> results;
  for (int home = last.first_home; home < last.first_home + last.homes; ++home) {
    const StepPlan& plan = plans[static_cast<std::size_t>(home)];
    if (plan.tokens.empty()) {
      continue;
    }
    StepResult result{.id = plan.id};
    if (broken()) {
      result.failure = make_error(ErrorCode::kUnavailable, "a device of the group has failed");
    } else {
      answer({home, plan, draws}, forward, tap, result);
    }
    if (draws) {
      results.push_back({home, std::move(result)});
    }
  }
  if (place_.fabric != nullptr) {
    place_.fabric->progress().reach(place_.on_fabric, {step_, cpu::kStepEnd});
  }
  return results;
}

// Draws, scores and pools what a home's plan asks for.
void Rank::answer(const Home& home, const Forward& forward, const LogitsTap& tap,
                  StepResult& result) {
  for (const SequenceSlice& slice : home.plan.slices) {
    if (slice.pooling != Pooling::kNone && home.draws) {
      result.pooled.push_back(pool(home, slice, forward));
    }
  }
  score(home, forward, result);
  draw(home, forward, tap, result);
  if (home.draws) {
    fail_unusable(home.plan, result);
  }
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

void Rank::draw(const Home& home, const Forward& forward, const LogitsTap& tap,
                StepResult& result) {
  const StepPlan& plan = home.plan;
  const std::span<const int> rows = rows_.sampled_rows(home.number);
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
    const auto logits = forward.project_logits(rows.subspan(first, count), tile_++);
    if (!home.draws) {
      continue;
    }
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
void Rank::score(const Home& home, const Forward& forward, StepResult& result) {
  const StepPlan& plan = home.plan;
  result.scored.resize(plan.scores.size());
  unusable_scores_.assign(plan.scores.size(), 0);
  const auto most = static_cast<std::size_t>(scratch_.max_logit_rows());
  for (std::size_t first = 0; first < plan.scores.size(); first += most) {
    const std::size_t count = std::min(most, plan.scores.size() - first);
    const auto specs = std::span(plan.scores).subspan(first, count);
    scored_rows_.clear();
    for (const ScoreSpec& spec : specs) {
      scored_rows_.push_back(rows_.first_row(home.number) + spec.after);
    }
    const auto logits = forward.project_logits(scored_rows_, tile_++);
    if (!home.draws) {
      continue;
    }
    mark_unusable(logits, std::span(unusable_scores_).subspan(first, count));
    sampler_.score(team_, logits, specs, std::span(result.scored).subspan(first, count));
  }
}

std::vector<double> Rank::pool(const Home& home, const SequenceSlice& slice,
                               const Forward& forward) {
  const bool mean = slice.pooling == Pooling::kMean;
  const int count = mean ? slice.token_count : 1;
  const auto rows = forward.normalise(
      rows_.first_row(home.number) + slice.token_begin + slice.token_count - count, count);
  const auto hidden = static_cast<std::size_t>(spec_.hidden);
  std::vector<double> pooled(hidden);
  if (!mean) {
    std::copy(rows.begin(), rows.end(), pooled.begin());
    return pooled;
  }
  add_rows(team_, rows, pooled);
  return pooled;
}

void Rank::swap_component(const SwapComponent& swap, ShardMemory& memory) {
  pages_.swap(weights_, swap, memory);
}

void Rank::copy_blocks(const KvLayout& source, std::span<const SharedHeads> heads,
                       std::span<const BlockMove> moves, const std::function<bool()>& called_off) {
  for (const BlockMove& move : moves) {
    if (called_off()) {
      break;
    }
    team_.run(std::ssize(heads), [&](std::int64_t i, int) {
      kv_->copy(source, heads[static_cast<std::size_t>(i)], move);
    });
  }
}

WorkerMemory Rank::memory() const {
  return {.weight_bytes = weights_.bytes() + pages_.bytes(),
          .kv_bytes = kv_->bytes(),
          .scratch_bytes = scratch_.bytes() + rope_.bytes()};
}

}  // namespace protean
