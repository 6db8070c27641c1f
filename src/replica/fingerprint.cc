#include "replica/fingerprint.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/units.h"
#include "cost/configuration_cost.h"
#include "cost/fit.h"
#include "cost/memory.h"
#include "cost/step_sizes.h"
#include "model/fingerprint_weights.h"
#include "replica/fingerprint_lengths.h"
#include "replica/fingerprint_probe.h"
#include "replica/fingerprint_rig.h"
#include "replica/replica.h"

namespace protean {
namespace {

constexpr int kMostRounds = 10;
constexpr int kFewTokens = 16;  // tokens of a step that waits for weights more than it computes
// Layers of the deeper fingerprint, unless these bytes at the highest precision hold more: on tiny
// layers, waking threads is louder than one layer.
constexpr int kLayers = 2;
constexpr std::int64_t kLayersBytes = 64 * kMiB;

// Bytes of the LM head that are timed, at the highest precision. Its time is in proportion to the
// vocabulary.
constexpr std::int64_t kLogitsBytes = 64 * kMiB;
// Tokens of the longer step of devices that share layers, which goes on although requests come.
constexpr int kSharedTokens = 64;
constexpr double kSharedBudget = 1.0 / 3;  // of the time for one device
constexpr int kRepeats = 2;                // runs of steps of few tokens, whose times vary most
// Steps after which caches hold what they hold while only one precision is computed.
constexpr int kStepsToSettle = 3;
// A pause after which a step is as slow as after any longer one, and how often that is timed.
constexpr std::chrono::milliseconds kIdle{50};
constexpr int kWakes = 3;

int timed_vocab(const ModelSpec& spec, Precision highest) {
  const std::int64_t row =
      std::max<std::int64_t>(1, vocab_matrix_bytes(spec, highest) / spec.vocab);
  return static_cast<int>(
      std::min<std::int64_t>(spec.vocab, std::max<std::int64_t>(1024, kLogitsBytes / row)));
}

int deepest_of(const ModelSpec& spec, Precision highest) {
  const std::int64_t fit = kLayersBytes / std::max<std::int64_t>(1, layer_bytes(spec, highest));
  return static_cast<int>(
      std::clamp<std::int64_t>(fit, std::min(kLayers, spec.layers), spec.layers));
}

// The KV of a step takes no more memory than the layers.
FingerprintLengths lengths_of(const ModelSpec& spec, int deepest,
                              const FingerprintOptions& options) {
  const ModelSpec timed = with_layers(spec, deepest);
  const std::int64_t layers = deepest * layer_bytes(spec, options.layers.front());
  return fingerprint_lengths(timed, std::max(kLayersBytes, layers),
                             kv_token_bytes(timed, options.kv.precision));
}

using Probe = FingerprintProbe;

class Measurement {
 public:
  Measurement(const Checkpoint& checkpoint, const FingerprintOptions& options)
      : spec_(checkpoint.spec()),
        options_(options),
        vocab_(timed_vocab(spec_, options.layers.front())),
        deepest_(deepest_of(spec_, options.layers.front())),
        lengths_(lengths_of(spec_, deepest_, options)) {
    for (const Precision precision : options.layers) {
      add_rows(precision);
      add_logits(precision);
    }
    for (StepSizes& sizes : attending_steps(lengths_)) {
      add(std::move(sizes), options.layers.front(), deepest_);
    }
    if (measures_sums(options, spec_)) {
      add_shared();
    }
  }

  Result<Fingerprint> run(const Checkpoint& checkpoint) {
    auto made = make_rig(checkpoint, probes_, {options_.cpus});
    if (!made.ok()) {
      return made.error();
    }
    std::unique_ptr<FingerprintRig> rig = *std::move(made);
    Fingerprint found{.layers = deepest_,
                      .prompt_tokens = lengths_.chunk,
                      .load_seconds = used_s(),
                      .kept_times = resume(probes_) + resume(shared_)};
    warm_up(*rig);
    time_rounds(*rig, probes_, options_.budget_s);
    const double wakes_us = wake_us(*rig);
    const Measured copies = in_quiet([&] { return rig->copy_bytes_per_us(); });
    rig.reset();  // two devices that share layers need as much memory
    if (const Status shared = time_shared(checkpoint); !shared.ok() && !stopped_) {
      log::warning("sums among devices are not measured: {}", shared.error().message);
      shared_.clear();  // the times of one device are right without them
      shared_steps_.clear();
    }
    if (stopped_) {
      return make_error(ErrorCode::kUnavailable, "the fingerprint was stopped");
    }
    for (const Probe& probe : probes_) {
      found.steps.push_back(probe.timed(spec_));
    }
    found.disturbed_steps = disturbed_steps(probes_) + disturbed_steps(shared_) + disturbed_wakes_ +
                            (copies.disturbed ? 1 : 0);
    // The fit computes for as long as many steps do.
    const auto cost = fit_step_cost(found.steps, [this] {
      return !options_.harvest.is_over() && (!is_disturbed() || pause());
    });
    if (!cost.ok()) {
      return cost.error();
    }
    found.cost = *cost;
    for (LogitsCost& logits : found.cost.logits) {
      logits.step_us *= vocab_ratio();
      logits.row_us *= vocab_ratio();
    }
    found.cost.wake_us = wakes_us;
    found.cost.copy_bytes_per_us = copies.value;
    for (const auto& [few, more, sampled] : shared_steps_) {
      const Precision precision = shared_[few].precision;
      found.cost.of(precision).sums = learned_sums(
          found.cost, spec_, precision, shared_[few].timed(spec_), shared_[more].timed(spec_));
      if (sampled) {
        found.cost.logits_at(default_embeddings_precision(precision)).shared_us =
            vocab_ratio() * std::max(0.0, shared_[*sampled].us() - shared_[few].us());
      }
    }
    for (const Precision precision : options_.layers) {
      found.models.push_back(estimate(precision));
    }
    found.seconds = static_cast<double>(steady_now_ns() - start_ns_) / static_cast<double>(kNsPerS);
    return found;
  }

 private:
  void add(StepSizes sizes, Precision precision, int layers) {
    if (sizes.longest() <= lengths_.sequence) {
      probes_.emplace_back(std::move(sizes), precision, layers, vocab_, options_.kv.block_tokens);
    }
  }

  // A short and a longer step at each precision, and the short one with logits where it is the
  // first with its LM head.
  void add_shared() {
    const auto add = [&](const StepSizes& sizes, Precision precision) {
      shared_.emplace_back(sizes, precision, deepest_, vocab_, options_.kv.block_tokens);
      shared_.back().name += " on two devices";
      return shared_.size() - 1;
    };
    for (const Precision precision : options_.layers) {
      SharedSteps steps{
          .few = add(inner_chunk(1), precision),
          .more = add(inner_chunk(std::min(kSharedTokens, lengths_.chunk)), precision)};
      if (is_first_with_its_head(precision)) {
        steps.sampled = add(decode_sizes(1, 1), precision);
      }
      shared_steps_.push_back(steps);
    }
  }

  // Chunks of as many tokens as steps have. Most leave tiles of rows incomplete, as prompts do.
  void add_rows(Precision precision) {
    for (const int tokens : {1, 2, 4, 8, 16, 24, 40, 72, 136, lengths_.chunk}) {
      add(inner_chunk(tokens), precision, deepest_);
      if (tokens == 1 || tokens == 16 || tokens == lengths_.chunk) {
        add(inner_chunk(tokens), precision, 1);
      }
    }
  }

  bool is_first_with_its_head(Precision precision) const {
    const auto first =
        std::find_if(options_.layers.begin(), options_.layers.end(), [&](Precision other) {
          return default_embeddings_precision(other) == default_embeddings_precision(precision);
        });
    return *first == precision;
  }

  // Steps that project logits. Precisions whose LM heads are alike measure it once.
  void add_logits(Precision precision) {
    if (!is_first_with_its_head(precision)) {
      return;
    }
    for (const int sequences : {1, 16, 64}) {
      add(decode_sizes(sequences, 1), precision, 1);
    }
  }

  Result<std::unique_ptr<FingerprintRig>> make_rig(const Checkpoint& checkpoint,
                                                   const std::vector<Probe>& probes,
                                                   std::vector<CpuShare> devices) {
    FingerprintRigOptions rig{.spec = with_layers(spec_, deepest_),
                              .layers = options_.layers,
                              .page_bytes = options_.page_bytes,
                              .kv = options_.kv,
                              .devices = std::move(devices),
                              .max_positions = lengths_.sequence,
                              .await_turn = [this] { return pause(); },
                              .disturbed = [this] { return is_disturbed(); }};
    rig.spec.vocab = vocab_;
    rig.kv.blocks = 1;
    for (const Probe& probe : probes) {
      rig.max_step_tokens = std::max(rig.max_step_tokens, probe.sizes.tokens());
      rig.kv.blocks = std::max<std::int64_t>(rig.kv.blocks, std::ssize(probe.plan.blocks));
    }
    return FingerprintRig::create(checkpoint, rig);
  }

  // Takes the times that an earlier measurement kept. Returns their number.
  int resume(std::vector<Probe>& probes) {
    int times = 0;
    for (Probe& probe : probes) {
      if (options_.kept_us) {
        probe.times_us = options_.kept_us(probe.name);
        times += static_cast<int>(probe.times_us.size());
      }
    }
    return times;
  }

  double used_s() const {
    return static_cast<double>(steady_now_ns() - start_ns_ - lost_ns_) /
           static_cast<double>(kNsPerS);
  }

  // Times all steps again and again until so much time is used.
  void time_rounds(FingerprintRig& rig, std::vector<Probe>& probes, double until_s) {
    double round_s = 0;
    for (int round = 0; round == 0 || (round < kMostRounds && used_s() + round_s < until_s);
         ++round) {
      const double before_s = used_s();
      time_all(rig, probes, round);
      round_s = used_s() - before_s;
    }
  }

  // Times the steps of devices that share layers, if there are any.
  Status time_shared(const Checkpoint& checkpoint) {
    if (shared_.empty() || stopped_) {
      return {};
    }
    const auto rig = make_rig(checkpoint, shared_, options_.sharing);
    if (!rig.ok()) {
      return rig.error();
    }
    time_rounds(**rig, shared_, used_s() + kSharedBudget * options_.budget_s);
    return {};
  }

  // Times each step that has fewer times than a round of this number ends with.
  void time_all(FingerprintRig& rig, std::vector<Probe>& probes, int round) {
    std::optional<Precision> before;
    for (Probe& probe : probes) {
      const bool few = probe.sizes.tokens() <= kFewTokens;
      const int wanted = (round + 1) * (few ? kRepeats : 1);
      if (probe.runs() >= wanted) {
        continue;
      }
      for (int step = 0; step < kStepsToSettle && before != probe.precision && pause(); ++step) {
        rig.time_us(probe.plan, probe.precision, probe.layers);
      }
      before = probe.precision;
      while (probe.runs() < wanted && !stopped_) {
        time(rig, probe);
      }
    }
  }

  void time(FingerprintRig& rig, Probe& probe) {
    const Measured found = in_quiet([&] {
      if (quiet() != caches_of_) {  // requests left their own data in the caches
        rig.time_us(probe.plan, probe.precision, probe.layers);
      }
      if (probe.sizes.tokens() <= kFewTokens) {
        rig.read_left_out(probe.precision);
      }
      const double us = rig.time_us(probe.plan, probe.precision, probe.layers);
      caches_of_ = quiet();
      return us;
    });
    if (stopped_) {
      return;
    }
    (found.disturbed ? probe.disturbed_us : probe.times_us).push_back(found.value);
    if (!found.disturbed && options_.keep_us) {
      options_.keep_us(probe.name, found.value);
    }
    if (options_.harvest.told) {
      int timed = 0;
      for (const std::vector<Probe>* probes : {&probes_, &shared_}) {
        timed += static_cast<int>(std::count_if(probes->begin(), probes->end(),
                                                [](const Probe& one) { return one.runs() > 0; }));
      }
      options_.harvest.told({.steps = timed,
                             .of_steps = static_cast<int>(probes_.size() + shared_.size()),
                             .discarded = disturbed_});
    }
  }

  // Returns by how much a step takes longer if no step ran for long before it.
  double wake_us(FingerprintRig& rig) {
    const Probe& probe = probes_.front();
    const auto time_us = [&] { return rig.time_us(probe.plan, probe.precision, probe.layers); };
    std::vector<double> longer_us;
    for (int wake = 0; wake < kWakes; ++wake) {
      const Measured longer = in_quiet([&] {
        for (int step = 0; step < kStepsToSettle; ++step) {
          time_us();
        }
        const double busy_us = time_us();
        std::this_thread::sleep_for(kIdle);
        return time_us() - busy_us;
      });
      longer_us.push_back(longer.value);
      disturbed_wakes_ += longer.disturbed ? 1 : 0;
    }
    std::nth_element(longer_us.begin(), longer_us.begin() + kWakes / 2, longer_us.end());
    return std::max(0.0, longer_us[kWakes / 2]);
  }

  // Waits for a turn. Returns false if the measurement is to end.
  bool pause() {
    if (options_.harvest.await_turn && !stopped_) {
      const TimeNs began_ns = steady_now_ns();
      stopped_ = !options_.harvest.await_turn();
      lost_ns_ +=
          gave_up() ? 0 : steady_now_ns() - began_ns;  // a load that never ends ends patience
      turn_ = quiet();
    }
    return !stopped_;
  }

  // Returns true if times are taken although requests come.
  bool gave_up() const {
    return static_cast<double>(lost_ns_) > options_.patience_s * static_cast<double>(kNsPerS);
  }

  // Returns true if times since the latest turn will be discarded.
  bool is_disturbed() const { return !gave_up() && (!turn_ || turn_ != quiet()); }

  // See Harvest; 0 if nothing else computes.
  std::optional<std::uint64_t> quiet() const {
    return options_.harvest.quiet ? options_.harvest.quiet() : 0;
  }

  struct Measured {
    double value = 0;
    bool disturbed = false;  // others had requests meanwhile
  };
  // Measures again if requests came meanwhile, until patience ends. Without a result if the
  // measurement is to end.
  template <class Measure>
  Measured in_quiet(const Measure& measure) {
    while (pause()) {
      const TimeNs began_ns = steady_now_ns();
      const double value = is_disturbed() ? 0 : measure();
      if (!is_disturbed()) {
        return {value, !turn_ || turn_ != quiet()};
      }
      ++disturbed_;
      lost_ns_ += steady_now_ns() - began_ns;
    }
    return {};
  }

  // Touches all weights and buffers.
  void warm_up(FingerprintRig& rig) {
    for (const Probe& probe : probes_) {
      if ((probe.sizes.tokens() == lengths_.chunk || probe.sizes.sampled) && pause()) {
        rig.time_us(probe.plan, probe.precision, probe.layers);
      }
    }
  }

  double time_of(Precision precision, int layers, int tokens, bool sampled) const {
    const auto found = std::find_if(probes_.begin(), probes_.end(), [&](const Probe& probe) {
      return probe.precision == precision && probe.layers == layers &&
             probe.sizes.tokens() == tokens && probe.sizes.sampled == sampled;
    });
    check(found != probes_.end(), "the steps of an answer are timed");
    return found->us();
  }

  double vocab_ratio() const { return static_cast<double>(spec_.vocab) / vocab_; }

  // Returns the time of the LM head for one row.
  double logits_us(Precision precision) const {
    for (const Precision other : options_.layers) {
      if (default_embeddings_precision(other) == default_embeddings_precision(precision)) {
        return vocab_ratio() *
               std::max(0.0, time_of(other, 1, 1, true) - time_of(other, 1, 1, false));
      }
    }
    return 0;
  }

  // The latency of the model with so many layers, from its answers of two lengths.
  Latency latency(Precision precision, int layers) const {
    const double first_us =
        time_of(precision, layers, lengths_.chunk, false) + logits_us(precision);
    const double next_us = time_of(precision, layers, 1, false) + logits_us(precision);
    return latency_of({.tokens = 4, .us = first_us + 4 * next_us},
                      {.tokens = 16, .us = first_us + 16 * next_us});
  }

  ModelEstimate estimate(Precision precision) const {
    const auto of_model = [&](const auto& of_layers) {
      return of_whole_model(of_layers(1), of_layers(deepest_),
                            {.model = spec_.layers, .other = deepest_});
    };
    const auto bytes = [&](int layers) {
      const std::int64_t embeddings =
          component_bytes(spec_, Component::kEmbeddings, default_embeddings_precision(precision));
      return static_cast<double>(layers * layer_bytes(spec_, precision) + embeddings);
    };
    const auto kv_bytes = [&](int layers) {
      return static_cast<double>(kv_token_bytes(with_layers(spec_, layers), options_.kv.precision));
    };
    return {.precision = precision,
            .latency = of_model([&](int layers) { return latency(precision, layers); }),
            .weight_bytes = std::llround(of_model(bytes)),
            .kv_token_bytes = std::llround(of_model(kv_bytes))};
  }

  const ModelSpec& spec_;
  const FingerprintOptions& options_;
  const int vocab_;
  const int deepest_;
  const FingerprintLengths lengths_;
  const TimeNs start_ns_ = steady_now_ns();
  std::vector<Probe> probes_;
  // Steps on two devices at a precision, by their places in shared_.
  struct SharedSteps {
    std::size_t few = 0;
    std::size_t more = 0;
    std::optional<std::size_t> sampled;  // `few` with logits
  };
  std::vector<Probe> shared_;  // on two devices
  std::vector<SharedSteps> shared_steps_;
  int disturbed_wakes_ = 0;
  bool stopped_ = false;                   // the harvest is to end
  std::optional<std::uint64_t> turn_ = 0;  // quiet() when the latest turn was given
  TimeNs lost_ns_ = 0;  // time that the budget does not count: waits and discarded runs
  int disturbed_ = 0;   // discarded runs
  std::optional<std::uint64_t> caches_of_ = 0;  // quiet() when a step was timed last
};

}  // namespace

std::int64_t page_bytes_of_pool(std::int64_t page_bytes) {
  return page_bytes >= 2 * kMiB ? 0 : page_bytes;
}

bool measures_sums(const FingerprintOptions& options, const ModelSpec& spec) {
  return options.sharing.size() == 2 && can_shard(spec, 2);
}

Result<Fingerprint> measure_fingerprint(const Checkpoint& checkpoint,
                                        const FingerprintOptions& options) {
  return Measurement(checkpoint, options).run(checkpoint);
}

}  // namespace protean
