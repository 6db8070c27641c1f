#include "replica/fingerprint_rig.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/finite.h"
#include "cost/memory.h"
#include "cost/step_shape.h"
#include "host/machine.h"
#include "model/fingerprint_weights.h"
#include "replica/replica.h"
#include "worker/rank.h"

namespace protean {
namespace {

constexpr std::int64_t kReadAtOnceBytes = 1 << 20;  // of other memory, by one thread
constexpr std::int64_t kLineBytes = 64;

// Binds a component to memory of its own and fills it.
Result<std::byte*> load(const Checkpoint& checkpoint, const ComponentVariant& which,
                        ModelWeights& weights) {
  auto memory =
      cpu::Region::map(component_size(checkpoint.spec(), which.component, which.precision));
  if (!memory.ok()) {
    return memory.error();
  }
  if (const Status loaded = load_repeated(checkpoint, which, memory->data()); !loaded.ok()) {
    return loaded.error();
  }
  weights.memory.push_back(*std::move(memory));
  return weights.memory.back().data();
}

// Returns the weights of all layers of `spec` at one precision. Takes the embeddings from `others`
// if they have them at its precision.
Result<ModelWeights> load_fingerprint(const Checkpoint& checkpoint, const ModelSpec& spec,
                                      Precision precision,
                                      const std::vector<ModelWeights>& others) {
  ModelWeights weights(spec, whole_model(spec.layers, 1, DeviceId{0}));
  for (int layer = 0; layer < spec.layers; ++layer) {
    for (const Component half : kLayerHalves) {
      const auto memory = load(checkpoint, {layer, half, precision}, weights);
      if (!memory.ok()) {
        return memory.error();
      }
      bind_half(weights.shard(layer, 0), spec, half, precision, *memory);
    }
  }
  const Precision embeddings = default_embeddings_precision(precision);
  for (const ModelWeights& other : others) {
    if (default_embeddings_precision(other.layers.front().precision.attention) == embeddings) {
      weights.embeddings = other.embeddings;
      return weights;
    }
  }
  const auto memory = load(checkpoint, {0, Component::kEmbeddings, embeddings}, weights);
  if (!memory.ok()) {
    return memory.error();
  }
  bind_embeddings(weights.embeddings.front(), spec, embeddings, *memory);
  return weights;
}

// Returns the bytes of other weights that the whole model reads between two steps through these
// layers, up to the size of the last cache, for each precision.
std::vector<std::int64_t> left_out(const ModelSpec& model, int layers,
                                   std::span<const Precision> precisions) {
  std::vector<std::int64_t> bytes;
  for (const Precision precision : precisions) {
    const std::int64_t layer = layer_bytes(model, precision);
    const std::int64_t whole =
        model.layers * layer + vocab_matrix_bytes(model, default_embeddings_precision(precision));
    bytes.push_back(
        std::max<std::int64_t>(0, std::min(whole, last_level_cache_bytes()) - layers * layer));
  }
  return bytes;
}

}  // namespace

Result<std::unique_ptr<FingerprintRig>> FingerprintRig::create(
    const Checkpoint& checkpoint, const FingerprintRigOptions& options) {
  const ModelSpec& model = checkpoint.spec();
  const ModelSpec spec = with_layers(model, options.layer_count);
  const cpu::Seat loading({}, options.cpus.where.nodes);
  std::vector<ModelWeights> weights;
  for (const Precision precision : options.layers) {
    auto loaded = load_fingerprint(checkpoint, spec, precision, weights);
    if (!loaded.ok()) {
      return loaded.error();
    }
    weights.push_back(*std::move(loaded));
  }
  const Holding holding = whole_model(spec.layers, 1, DeviceId{0});
  auto kv = KvStore::create({.spec = spec, .holding = holding, .kv = options.kv});
  if (!kv.ok()) {
    return kv.error();
  }
  auto scratch =
      Scratch::create(spec, options.max_step_tokens, std::min(kLogitRows, options.max_step_tokens));
  if (!scratch.ok()) {
    return scratch.error();
  }
  std::vector<std::int64_t> bytes = left_out(model, spec.layers, options.layers);
  auto other =
      cpu::Region::map(std::max(kLineBytes, *std::max_element(bytes.begin(), bytes.end())));
  if (!other.ok()) {
    return other.error();
  }
  return std::unique_ptr<FingerprintRig>(
      new FingerprintRig(options, {.spec = spec,
                                   .weights = std::move(weights),
                                   .kv = *std::move(kv),
                                   .scratch = *std::move(scratch),
                                   .other = *std::move(other),
                                   .left_out_bytes = std::move(bytes)}));
}

FingerprintRig::FingerprintRig(const FingerprintRigOptions& options, Built built)
    : options_(options),
      spec_(std::move(built.spec)),
      weights_(std::move(built.weights)),
      kv_(std::move(built.kv)),
      scratch_(std::move(built.scratch)),
      other_(std::move(built.other)),
      left_out_bytes_(std::move(built.left_out_bytes)),
      rope_(spec_.rope, spec_.attention.head_dim, options.max_positions),
      team_(options.cpus.threads, options.cpus.where),
      sampler_(spec_.vocab, options.cpus.threads),
      rows_({.rows = options.max_step_tokens,
             .positions = options.max_positions,
             .vocab = spec_.vocab,
             .block_tokens = options.kv.block_tokens}),
      thread_([this] { run_jobs(); }) {
  fill_kv();
}

FingerprintRig::~FingerprintRig() {
  jobs_.close();
  thread_.join();
}

std::size_t FingerprintRig::place_of(Precision precision) const {
  const auto found = std::find(options_.layers.begin(), options_.layers.end(), precision);
  check(found != options_.layers.end(), "a fingerprint has the precisions that it was made with");
  return static_cast<std::size_t>(found - options_.layers.begin());
}

std::int64_t FingerprintRig::weight_bytes(Precision precision, int layers) const {
  return layers * protean::layer_bytes(spec_, precision) +
         component_bytes(spec_, Component::kEmbeddings, default_embeddings_precision(precision));
}

double FingerprintRig::time_us(const StepPlan& plan, Precision precision, int layers) {
  check(layers > 0 && layers <= spec_.layers, "a fingerprint has these layers");
  const std::size_t place = place_of(precision);
  const TimeNs start_ns = steady_now_ns();
  jobs_.push({.plan = &plan, .weights = &weights_[place], .layers = layers});
  done_.pop_all();
  return static_cast<double>(steady_now_ns() - start_ns) / kNsPerUs;
}

void FingerprintRig::read_left_out(Precision precision) {
  jobs_.push({.other_bytes = left_out_bytes_[place_of(precision)]});
  done_.pop_all();
}

double FingerprintRig::copy_bytes_per_us() {
  const cpu::Region& weights = weights_.front().memory.front();
  const std::int64_t bytes = std::min(weights.bytes(), other_.bytes());
  const TimeNs start_ns = steady_now_ns();
  copy_checked({weights.data(), static_cast<std::size_t>(bytes)},
               {other_.data(), static_cast<std::size_t>(bytes)});
  return static_cast<double>(bytes) * kNsPerUs / static_cast<double>(steady_now_ns() - start_ns);
}

// Computes one sequence and copies its blocks to all others, so that no block is zeros.
void FingerprintRig::fill_kv() {
  const int tokens = std::min({options_.max_step_tokens, options_.max_positions, 256});
  const StepPlan plan = plan_of(inner_chunk(tokens), spec_.vocab, kv_->block_tokens());
  jobs_.push({.plan = &plan, .weights = &weights_.front(), .layers = spec_.layers});
  done_.pop_all();
  const std::int64_t full = std::max(1, tokens / kv_->block_tokens());
  for (std::int64_t block = full; block < kv_->blocks(); ++block) {
    kv_->copy({static_cast<BlockId>(block % full), static_cast<BlockId>(block)}, 0, 1);
  }
  // Memory that is read without having been written would be one page of zeros.
  std::memset(other_.data(), 1, static_cast<std::size_t>(other_.bytes()));
}

void FingerprintRig::run_jobs() {
  const cpu::Seat seat = team_.take_seat();
  while (true) {
    const std::vector<Job> jobs = jobs_.pop_all();
    if (jobs.empty()) {
      return;
    }
    for (const Job& job : jobs) {
      if (job.plan == nullptr) {
        read_other(job.other_bytes);
      } else {
        run(job);
      }
      done_.push(0);
    }
  }
}

void FingerprintRig::read_other(std::int64_t bytes) {
  const std::int64_t pieces = bytes / kReadAtOnceBytes;
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(team_.threads()));
  team_.run(pieces, [&](std::int64_t piece, int thread) {
    std::uint64_t sum = 0;
    for (std::int64_t at = 0; at < kReadAtOnceBytes; at += kLineBytes) {
      std::uint64_t word = 0;
      std::memcpy(&word, other_.data() + piece * kReadAtOnceBytes + at, sizeof word);
      sum += word;
    }
    sums[static_cast<std::size_t>(thread)] += sum;
  });
  for (const std::uint64_t sum : sums) {
    other_sum_ += sum;
  }
}

void FingerprintRig::run(const Job& job) {
  rows_.read(*job.plan, kv_->blocks());
  const Forward forward({.team = &team_,
                         .spec = &spec_,
                         .weights = job.weights,
                         .rope = rope_.view(),
                         .kv = kv_->layers(),
                         .scratch = &scratch_});
  const ForwardBatch batch = rows_.batch();
  forward.embed(batch);
  forward.run_layers(batch, {.first = 0, .count = job.layers});
  draw(*job.plan, forward);
}

// Projects and draws as a rank does.
void FingerprintRig::draw(const StepPlan& plan, const Forward& forward) {
  std::vector<TokenId> tokens(plan.samples.size());
  const auto most = static_cast<std::size_t>(scratch_.max_logit_rows());
  for (std::size_t first = 0; first < plan.samples.size(); first += most) {
    const std::size_t count = std::min(most, plan.samples.size() - first);
    const auto logits = forward.project_logits(rows_.sampled_rows().subspan(first, count));
    const std::size_t width = logits.size() / count;
    usable_.assign(count, 0);
    team_.run(static_cast<std::int64_t>(count), [&](std::int64_t i, int) {
      const auto row = static_cast<std::size_t>(i);
      usable_[row] = all_finite(logits.subspan(row * width, width)) ? 1 : 0;
    });
    sampler_.sample(team_, {logits, std::span(plan.samples).subspan(first, count), plan.history},
                    std::span(tokens).subspan(first, count), {});
  }
}

}  // namespace protean
