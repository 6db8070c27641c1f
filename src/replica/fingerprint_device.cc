#include "replica/fingerprint_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/finite.h"
#include "base/units.h"
#include "cost/memory.h"
#include "cost/pages.h"
#include "cost/shards.h"
#include "cost/step_sizes.h"
#include "host/machine.h"
#include "model/fingerprint_weights.h"
#include "model/shard_checkpoint.h"
#include "replica/replica.h"
#include "worker/rank.h"
#include "worker/route.h"

namespace protean {
namespace {

constexpr std::int64_t kReadAtOnceBytes = 1 << 20;  // other memory that one thread reads at once
constexpr std::int64_t kLineBytes = 64;

// Returns the bytes of other weights that the whole model reads between two steps through the
// layers of `spec`, up to the size of the last cache.
std::int64_t left_out(const ModelSpec& model, const ModelSpec& spec, Precision precision) {
  const std::int64_t layer = layer_bytes(model, precision);
  const std::int64_t whole =
      model.layers * layer + vocab_matrix_bytes(model, default_embeddings_precision(precision));
  return std::max<std::int64_t>(0, std::min(whole, last_level_cache_bytes()) - spec.layers * layer);
}

Status await_turn(const FingerprintRigOptions& options) {
  return !options.await_turn || options.await_turn()
             ? Status()
             : make_error(ErrorCode::kUnavailable, "the fingerprint was stopped");
}

// Returns how devices share the layers of a fingerprint.
Formation formation_of(const FingerprintRigOptions& options) {
  Formation formation{
      .form = single_device_form(options.spec, options.layers.front(), DeviceId{0}, options.kv),
      .devices = {},
      .homes = {{}}};
  std::vector<DeviceId> ids;
  for (int device = 0; device < options.shards(); ++device) {
    ids.push_back(DeviceId{device});
    formation.devices.push_back(device);
    formation.homes.front().push_back(device);
  }
  formation.form.shards = options.shards();
  formation.form = divide(std::move(formation.form),
                          even_division(options.spec.layers, options.shards(), 1), ids);
  return formation;
}

const CpuShare& cpus_of(const FingerprintRigOptions& options, int device) {
  return options.devices.at(static_cast<std::size_t>(device));
}

}  // namespace

// Fills the memory of a device.
class FingerprintDevice::Loader {
 public:
  Loader(const Checkpoint& checkpoint, const FingerprintRigOptions& options, int device)
      : model_(checkpoint),
        checkpoint_(checkpoint, device, options.shards()),
        options_(options),
        device_(device),
        shard_(shard_spec(options.spec, options.shards())),
        holding_(formation_of(options).form.group.at(static_cast<std::size_t>(device))),
        team_(cpus_of(options, device).threads, cpus_of(options, device).where) {}

  Result<Memory> load() {
    if (options_.page_bytes > 0) {
      auto pool = cpu::PagePool::create(options_.page_bytes, pages_needed(),
                                        cpus_of(options_, device_).where.nodes);
      if (!pool.ok()) {
        return pool.error();
      }
      memory_.pool = *std::move(pool);
    }
    for (const Precision precision : options_.layers) {
      if (const Status loaded = load_at(precision); !loaded.ok()) {
        return loaded.error();
      }
    }
    const KvStore::Shape sizes{
        .spec = options_.spec, .holding = holding_, .shards = options_.shards(), .kv = options_.kv};
    auto kv = memory_.pool ? KvStore::create(sizes, *memory_.pool) : KvStore::create(sizes);
    if (!kv.ok()) {
      return kv.error();
    }
    memory_.kv = *std::move(kv);
    if (const Status filled = fill_other(); !filled.ok()) {
      return filled.error();
    }
    return std::move(memory_);
  }

 private:
  std::int64_t pages_of(Component component, Precision precision) const {
    return ceil_div(component_size(shard_, component, precision), options_.page_bytes);
  }

  std::int64_t pages_needed() const {
    // Each layer's array of KV begins on a page.
    std::int64_t pages =
        kv_pages(options_.spec, options_.kv, options_.page_bytes) + options_.spec.layers;
    for (const Precision precision : options_.layers) {
      pages += options_.spec.layers * (pages_of(Component::kAttention, precision) +
                                       pages_of(Component::kMlp, precision)) +
               pages_of(Component::kEmbeddings, default_embeddings_precision(precision));
    }
    return pages;
  }

  // Returns filled memory of a component, which lives as long as the rig.
  Result<std::byte*> load_component(int layer, Component component, Precision precision) {
    std::byte* data = nullptr;
    if (memory_.pool) {
      const std::int64_t pages = pages_of(component, precision);
      auto range = cpu::PageRange::reserve(*memory_.pool, pages);
      const Status attached = range.ok() ? range->attach(pages) : Status(range.error());
      if (!attached.ok()) {
        return attached.error();
      }
      memory_.pages.push_back(*std::move(range));
      data = memory_.pages.back().data();
    } else {
      auto region = cpu::Region::map(component_size(shard_, component, precision));
      if (!region.ok()) {
        return region.error();
      }
      memory_.regions.push_back(*std::move(region));
      data = memory_.regions.back().data();
    }
    const Status turn = await_turn(options_);
    const Status filled =
        turn.ok() ? load_repeated(checkpoint_, shard_, {layer, component, precision}, team_, data)
                  : turn;
    return filled.ok() ? Result<std::byte*>(data) : filled.error();
  }

  // Loads all layers at a precision, and the embeddings unless they are there at theirs.
  Status load_at(Precision precision) {
    ModelWeights weights(options_.spec, holding_, options_.shards());
    for (int layer = 0; layer < options_.spec.layers; ++layer) {
      for (const Component half : kLayerHalves) {
        const auto data = load_component(layer, half, precision);
        if (!data.ok()) {
          return data.error();
        }
        bind_half(weights.shard(layer, device_), shard_, half, precision, *data);
      }
    }
    const Precision embeddings = default_embeddings_precision(precision);
    for (const ModelWeights& other : memory_.weights) {
      if (default_embeddings_precision(other.shard(0, device_).precision.attention) == embeddings) {
        weights.embeddings = other.embeddings;
        memory_.weights.push_back(std::move(weights));
        return {};
      }
    }
    const auto data = load_component(0, Component::kEmbeddings, embeddings);
    if (!data.ok()) {
      return data.error();
    }
    bind_embeddings(weights.embeddings.at(static_cast<std::size_t>(device_)), shard_, embeddings,
                    *data);
    memory_.weights.push_back(std::move(weights));
    return {};
  }

  // Writes it, because memory that is read without having been written would be one page of zeros.
  Status fill_other() {
    std::int64_t most = kReadAtOnceBytes;
    for (const Precision precision : options_.layers) {
      memory_.left_out_bytes.push_back(left_out(model_.spec(), options_.spec, precision) /
                                       options_.shards());
      most = std::max(most, memory_.left_out_bytes.back());
    }
    auto other = cpu::Region::map(round_up(most, kReadAtOnceBytes));
    if (!other.ok()) {
      return other.error();
    }
    team_.run(other->bytes() / kReadAtOnceBytes, [&](std::int64_t piece, int) {
      std::memset(other->data() + piece * kReadAtOnceBytes, 1, kReadAtOnceBytes);
    });
    memory_.other = *std::move(other);
    return {};
  }

  const Checkpoint& model_;
  const ShardCheckpoint checkpoint_;
  const FingerprintRigOptions& options_;
  const int device_;
  const ModelSpec shard_;
  const Holding holding_;
  cpu::Team team_;
  Memory memory_;
};

Result<std::unique_ptr<FingerprintDevice>> FingerprintDevice::create(
    const Checkpoint& checkpoint, const FingerprintRigOptions& options, int device,
    cpu::ExchangeBoard& board) {
  const cpu::Seat loading({}, cpus_of(options, device).where.nodes);
  auto memory = Loader(checkpoint, options, device).load();
  if (!memory.ok()) {
    return memory.error();
  }
  auto scratch = Scratch::create(
      options.spec, options.max_step_tokens, std::min(kLogitRows, options.max_step_tokens),
      {.shards = options.shards(), .held = 1, .exchanges = options.shards() > 1});
  if (!scratch.ok()) {
    return scratch.error();
  }
  if (const Status turn = await_turn(options); !turn.ok()) {
    return turn.error();
  }
  return std::unique_ptr<FingerprintDevice>(
      new FingerprintDevice(options, device, board, *std::move(memory), *std::move(scratch)));
}

FingerprintDevice::FingerprintDevice(const FingerprintRigOptions& options, int device,
                                     cpu::ExchangeBoard& board, Memory memory, Scratch scratch)
    : options_(options),
      spec_(options.spec),
      members_(route_of(formation_of(options), device).members),
      exchange_(board, device, members_, options.spec.layers),
      memory_(std::move(memory)),
      scratch_(std::move(scratch)),
      rope_(spec_, options.max_positions),
      team_(cpus_of(options, device).threads, cpus_of(options, device).where),
      sampler_(spec_.vocab, team_.threads()),
      rows_({.rows = options.max_step_tokens,
             .positions = options.max_positions,
             .vocab = spec_.vocab,
             .block_tokens = options.kv.block_tokens}),
      thread_([this] { run_jobs(); }) {
  if (options.shards() == 1) {
    fill_kv();
  }
}

FingerprintDevice::~FingerprintDevice() {
  jobs_.close();
  thread_.join();
}

std::size_t FingerprintDevice::place_of(Precision precision) const {
  const auto found = std::find(options_.layers.begin(), options_.layers.end(), precision);
  check(found != options_.layers.end(), "a fingerprint has the precisions that it was made with");
  return static_cast<std::size_t>(found - options_.layers.begin());
}

void FingerprintDevice::begin(const StepPlan& plan, Precision precision, int layers) {
  check(layers > 0 && layers <= spec_.layers, "a fingerprint has these layers");
  jobs_.push({.plan = &plan, .weights = &memory_.weights[place_of(precision)], .layers = layers});
}

void FingerprintDevice::begin_reading(Precision precision) {
  jobs_.push({.other_bytes = memory_.left_out_bytes[place_of(precision)]});
}

double FingerprintDevice::copy_bytes_per_us() {
  const auto bytes = static_cast<std::size_t>(memory_.other.bytes() / 2);
  std::byte* const data = memory_.other.data();
  const TimeNs start_ns = steady_now_ns();
  copy_checked({data, bytes}, {data + bytes, bytes});
  return static_cast<double>(bytes) * kNsPerUs / static_cast<double>(steady_now_ns() - start_ns);
}

// Computes one sequence and copies its blocks to all others, so that no block is zeros.
void FingerprintDevice::fill_kv() {
  const int tokens = std::min({options_.max_step_tokens, options_.max_positions, 256});
  const StepPlan plan = plan_of(inner_chunk(tokens), spec_.vocab, memory_.kv->block_tokens());
  jobs_.push(
      {.plan = &plan, .weights = &memory_.weights.front(), .layers = spec_.layers, .whole = true});
  done_.pop_all();
  const std::int64_t full = std::max(1, tokens / memory_.kv->block_tokens());
  const KvLayout layout = memory_.kv->layout();
  for (const SharedHeads& heads : memory_.kv->own_heads()) {
    for (std::int64_t block = full; block < memory_.kv->blocks(); ++block) {
      memory_.kv->copy(layout, heads,
                       {static_cast<BlockId>(block % full), static_cast<BlockId>(block)});
    }
  }
}

void FingerprintDevice::run_jobs() {
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

void FingerprintDevice::read_other(std::int64_t bytes) {
  const std::int64_t pieces = bytes / kReadAtOnceBytes;
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(team_.threads()));
  team_.run(pieces, [&](std::int64_t piece, int thread) {
    std::uint64_t sum = 0;
    for (std::int64_t at = 0; at < kReadAtOnceBytes; at += kLineBytes) {
      std::uint64_t word = 0;
      std::memcpy(&word, memory_.other.data() + piece * kReadAtOnceBytes + at, sizeof word);
      sum += word;
    }
    sums[static_cast<std::size_t>(thread)] += sum;
  });
  for (const std::uint64_t sum : sums) {
    other_sum_ += sum;
  }
}

void FingerprintDevice::run(const Job& job) {
  rows_.read({job.plan, 1}, memory_.kv->blocks());
  exchange_.begin_step(++steps_);
  const Forward forward({.team = &team_,
                         .spec = &spec_,
                         .weights = job.weights,
                         .rope = rope_.view(),
                         .kv = memory_.kv->layers(),
                         .scratch = &scratch_,
                         .exchange = &exchange_});
  const ForwardBatch batch = rows_.batch(0, 1);
  forward.embed(batch);
  for (int layer = 0; layer < job.layers; ++layer) {
    for (const Component half : kLayerHalves) {
      if (!job.whole && options_.shards() == 1 && options_.disturbed && options_.disturbed()) {
        return;
      }
      forward.run_half(batch, layer, half);
    }
  }
  draw(*job.plan, forward);
}

// Projects and draws as a rank does.
void FingerprintDevice::draw(const StepPlan& plan, const Forward& forward) {
  std::vector<TokenId> tokens(plan.samples.size());
  const auto most = static_cast<std::size_t>(scratch_.max_logit_rows());
  for (std::size_t first = 0; first < plan.samples.size(); first += most) {
    const std::size_t count = std::min(most, plan.samples.size() - first);
    const auto logits = forward.project_logits(rows_.sampled_rows(0).subspan(first, count));
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
