// Measures what it costs to let two replicas become one by shards or by layers and part again while
// they decode (AMOEBA section 4.2, figures 9 to 11), and what copying the same bytes costs. Prints
// medians; compare only numbers of one run. Usage: reshard_bench [150m|1b] [rounds]

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/check.h"
#include "base/units.h"
#include "cost/memory.h"
#include "cost/pages.h"
#include "cost/shards.h"
#include "model/synthetic_checkpoint.h"
#include "worker/cpu_worker.h"

namespace protean {
namespace {

constexpr int kHomes = 2;
constexpr int kBatch = 4;  // sequences of each home
constexpr int kContext = 512;
constexpr int kBlockTokens = 16;
constexpr std::int64_t kBlocks = 256;  // of each home
constexpr std::int64_t kLive = 230;    // of them: 90 %
constexpr int kSteps = 12;             // that a median is of

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

ModelSpec spec_of(const std::string& size) {
  ModelSpec spec;
  spec.architecture = "bench";
  spec.layers = size == "1b" ? 16 : 12;
  spec.hidden = size == "1b" ? 2048 : 1024;
  spec.ffn = size == "1b" ? 8192 : 2816;
  spec.vocab = 8192;
  spec.max_context = 2048;
  spec.attention = {.heads = spec.hidden / 64, .kv_heads = 8, .head_dim = 64};
  return spec;
}

StepPlan decode_step(std::uint64_t id) {
  StepPlan plan{.id = StepId{id}};
  constexpr int kEach = kContext / kBlockTokens;
  for (int i = 0; i < kBatch; ++i) {
    plan.tokens.push_back(i);
    for (int block = 0; block < kEach; ++block) {
      plan.blocks.push_back(i * kEach + block);
    }
    plan.slices.push_back({.first_position = kContext - 1,
                           .token_begin = i,
                           .token_count = 1,
                           .block_begin = i * kEach,
                           .block_count = kEach,
                           .sample = i});
    plan.samples.push_back({.params = {.temperature = 0.0F}, .position = kContext});
  }
  return plan;
}

using Answer = std::variant<StepResult, MorphReady, MorphDone>;

// Two joined replicas on one core each, which hold whole copies.
class Pair {
 public:
  explicit Pair(const ModelSpec& spec) : spec_(spec), checkpoint_(spec) {
    const std::shared_ptr<Fabric> fabric = *Fabric::create(
        {.devices = kHomes, .rows = 2 * kContext, .hidden = spec.hidden, .steps_in_flight = 2});
    Form form = single_device_form(spec, Precision::kBf16, DeviceId{0},
                                   {.block_tokens = kBlockTokens, .blocks = kBlocks});
    form.shards = kHomes;
    form.group = {whole_model(spec.layers, kHomes, DeviceId{0})};
    const std::int64_t page_bytes = page_bytes_for(spec, kHomes);
    const std::int64_t spare = 2 * kv_layer_block_bytes(spec, form.kv) * kBlocks / page_bytes + 8;
    for (int i = 0; i < kHomes; ++i) {
      workers_.push_back(*CpuWorker::create(
          {.form = form,
           .devices = {{.threads = 1}},
           .joining = Joining{fabric, i},
           .max_step_tokens = kContext,
           .max_positions = 2 * kContext,
           .pages = PageBudget{page_bytes, form_pages(spec, form, page_bytes) + spare},
           .read_component = [this](const ComponentVariant& which, std::span<std::byte> memory,
                                    const Pace&) { return read(which, memory); },
           .background_share = 1},
          checkpoint_, {}, [this](StepResult result) { answers_.push(std::move(result)); },
          {.ready = [this](MorphReady ready) { answers_.push(std::move(ready)); },
           .done = [this](MorphDone done) { answers_.push(done); }}));
    }
    workers_[0]->join({workers_[1].get()});
  }
  ~Pair() {
    for (const auto& worker : workers_) {
      worker->close();
    }
    for (const auto& worker : workers_) {
      (void)worker->stop();  // no device hangs here, which ~CpuWorker checks
    }
  }

  // Returns the milliseconds of a joint step, which begins with what was committed before.
  double step(Clock::time_point begin = Clock::now()) {
    std::vector<StepPlan> plans;
    for (int home = 0; home < kHomes; ++home) {
      plans.push_back(decode_step(++last_step_));
    }
    workers_[0]->start(std::move(plans));
    wait<StepResult>(kHomes);
    return milliseconds_since(begin);
  }
  double raw_step() {
    std::vector<double> times;
    for (int i = 0; i < kSteps; ++i) {
      times.push_back(step());
    }
    return median(times);
  }

  // Prepares steps and returns the milliseconds that it takes.
  double prepare(const std::vector<HoldShards>& holds) {
    const Clock::time_point begin = Clock::now();
    for (const HoldShards& hold : holds) {
      workers_[0]->prepare(MorphId{++last_morph_}, hold);
      wait<MorphReady>(1);
    }
    return milliseconds_since(begin);
  }
  // Commits what was prepared before the next step and returns the time of both.
  double commit_and_step(std::size_t count) {
    std::vector<std::vector<BlockId>> live(kHomes);
    for (std::vector<BlockId>& blocks : live) {
      for (BlockId block = 0; block < kLive; ++block) {
        blocks.push_back(block);
      }
    }
    const Clock::time_point begin = Clock::now();
    workers_[0]->keep(std::move(live));
    for (std::size_t i = 0; i < count; ++i) {
      workers_[0]->commit(MorphId{last_morph_ - count + i + 1});
    }
    const double took = step(begin);
    wait<MorphDone>(static_cast<int>(count));
    return took;
  }

 private:
  Result<std::string> read(const ComponentVariant& which, std::span<std::byte> memory) {
    std::vector<std::byte>& packed = packed_[{which.component, which.shard}];
    if (packed.empty()) {
      packed.resize(memory.size());
      auto region = *cpu::Region::map(std::ssize(memory));
      ComponentVariant first = which;
      first.layer = 0;  // all layers have the same weights, since only time is measured
      check(load_component(checkpoint_, first, region.data()).ok(), "synthetic weights are packed");
      std::memcpy(packed.data(), region.data(), memory.size());
    }
    std::memcpy(memory.data(), packed.data(), memory.size());
    return std::string();
  }
  template <class What>
  void wait(int count) {
    int& seen = seen_[Answer(What()).index()];
    while (seen < count) {
      for (Answer& answer : answers_.pop_all()) {
        if (const auto* const ready = std::get_if<MorphReady>(&answer)) {
          check(!ready->failure, "a step is prepared");
        }
        ++seen_[answer.index()];
      }
    }
    seen -= count;
  }

  const ModelSpec spec_;
  SyntheticCheckpoint checkpoint_;
  std::map<std::pair<Component, int>, std::vector<std::byte>> packed_;
  BoundedQueue<Answer> answers_{1};
  std::map<std::size_t, int> seen_;
  std::uint64_t last_step_ = 0;
  std::uint64_t last_morph_ = 0;
  std::vector<std::unique_ptr<CpuWorker>> workers_;
};

enum class Way { kShards, kLayers };

HoldShards one_copy(const ModelSpec& spec, int layer, Component component, Way way) {
  if (way == Way::kShards) {
    return {layer, component, {{0, 1}, {1, 1}}};
  }
  const bool first = layer < spec.layers / 2;
  return {layer, component, {{0, first ? 2 : 0}, {0, first ? 0 : 2}}};
}

HoldShards whole_copies(int layer, Component component) {
  return {layer, component, {{0, 2}, {0, 2}}};
}

std::vector<HoldShards> all_layers(const ModelSpec& spec,
                                   const std::function<HoldShards(int)>& hold) {
  std::vector<HoldShards> holds;
  for (int layer = 0; layer < spec.layers; ++layer) {
    holds.push_back(hold(layer));
  }
  return holds;
}

using Bytes = std::vector<char>;

// Returns memory for each device that has been written before.
std::vector<Bytes> written(std::int64_t each) {
  return std::vector<Bytes>(kHomes, Bytes(static_cast<std::size_t>(each), 1));
}

// Returns the milliseconds that work(device) takes on two threads.
double on_both_ms(const std::function<void(std::size_t)>& work) {
  std::vector<double> times;
  for (int i = 0; i < kSteps; ++i) {
    const Clock::time_point begin = Clock::now();
    std::thread other([&] { work(1); });
    work(0);
    other.join();
    times.push_back(milliseconds_since(begin));
  }
  return median(times);
}

// Returns the milliseconds that copying takes on two threads, each into memory of its own.
double plain_copy_ms(std::int64_t bytes) {
  const std::vector<Bytes> from = written(bytes / kHomes);
  std::vector<Bytes> to = from;
  return on_both_ms([&](std::size_t device) {
    std::memcpy(to[device].data(), from[device].data(), from[device].size());
  });
}

// Returns the milliseconds of AMOEBA's base solution for KV (section 3.1): the halves of blocks
// that arrive go to reserved memory, and the halves that stay move together. A half of a block is
// adjacent here. In the paper's first layout its pieces are of single tokens, which takes longer.
double migrate_and_defragment_ms(std::int64_t block_bytes, std::int64_t blocks) {
  std::vector<Bytes> live = written(blocks * block_bytes);
  std::vector<Bytes> reserved = written(blocks * block_bytes / 2);
  const std::int64_t half = block_bytes / 2;
  const double migrating = on_both_ms([&](std::size_t device) {
    const char* const peer = live[1 - device].data() + static_cast<std::int64_t>(device) * half;
    for (std::int64_t block = 0; block < blocks; ++block) {
      std::memcpy(reserved[device].data() + block * half, peer + block * block_bytes,
                  static_cast<std::size_t>(half));
    }
  });
  return migrating + on_both_ms([&](std::size_t device) {
           char* const own = live[device].data();
           for (std::int64_t block = 0; block < blocks; ++block) {
             std::memmove(own + block * half,
                          own + block * block_bytes + static_cast<std::int64_t>(device) * half,
                          static_cast<std::size_t>(half));
           }
         });
}

// Returns the milliseconds of AMOEBA's base solution for the MLP of a layer (section 3.2): the part
// that a device keeps moves to the front of the layer's memory, whose end is then given back. For
// gate and up, half of the outputs is adjacent; for down, half of the inputs of each output.
double partial_swap_ms(const ModelSpec& spec) {
  const std::int64_t matrix = std::int64_t{2} * spec.hidden * spec.ffn;
  const std::int64_t row = std::int64_t{2} * spec.ffn;
  std::vector<Bytes> weights = written(3 * matrix);
  return on_both_ms([&](std::size_t device) {
    char* const layer = weights[device].data();
    const auto index = static_cast<std::int64_t>(device);
    for (std::int64_t i = 0; i < 2; ++i) {
      std::memmove(layer + i * matrix / 2, layer + i * matrix + index * matrix / 2,
                   static_cast<std::size_t>(matrix / 2));
    }
    for (std::int64_t output = 0; output < spec.hidden; ++output) {
      std::memmove(layer + matrix + output * row / 2,
                   layer + 2 * matrix + output * row + index * row / 2,
                   static_cast<std::size_t>(row / 2));
    }
  });
}

struct Cost {
  std::vector<double> drop_mlp, drop_attention, fetch_attention, fetch_mlp;  // beyond raw steps
  std::vector<double> fetching;  // weights of all layers, in the background
  std::vector<double> whole_step, divided_step;
};

// Commits the same change in all layers before one step, and returns what it adds to the step.
double change_all(Pair& pair, const std::vector<HoldShards>& holds, double& preparing_ms) {
  preparing_ms = pair.prepare(holds);
  const double took = pair.commit_and_step(holds.size());
  return took - pair.raw_step();
}

Cost measure(const ModelSpec& spec, Way way, int rounds) {
  Pair pair(spec);
  Cost cost;
  double preparing = 0;
  for (int round = 0; round < rounds; ++round) {
    cost.whole_step.push_back(pair.raw_step());
    const auto drop = [&](Component component) {
      return all_layers(spec, [&](int layer) { return one_copy(spec, layer, component, way); });
    };
    const auto fetch = [&](Component component) {
      return all_layers(spec, [&](int layer) { return whole_copies(layer, component); });
    };
    cost.drop_mlp.push_back(change_all(pair, drop(Component::kMlp), preparing));
    cost.drop_attention.push_back(change_all(pair, drop(Component::kAttention), preparing));
    cost.divided_step.push_back(pair.raw_step());
    cost.fetch_attention.push_back(change_all(pair, fetch(Component::kAttention), preparing));
    double fetched = preparing;
    cost.fetch_mlp.push_back(change_all(pair, fetch(Component::kMlp), preparing));
    cost.fetching.push_back(fetched + preparing);
  }
  return cost;
}

void report(const ModelSpec& spec, Way way, int rounds) {
  const Cost cost = measure(spec, way, rounds);
  const KvForm kv{.block_tokens = kBlockTokens};
  // By shards each device gives half of each live block, by layers all blocks of half the layers.
  const std::int64_t moved = kHomes * kLive * kv_block_bytes(spec, kv) / 2;
  const std::int64_t weights =
      spec.layers * (component_bytes(spec, Component::kAttention, Precision::kBf16) +
                     component_bytes(spec, Component::kMlp, Precision::kBf16));
  fmt::print("by {}\n", way == Way::kShards ? "shards" : "layers");
  fmt::print(
      "  joint decode step of {} + {} sequences at {}: {:8.1f} ms with whole copies, {:.1f} with "
      "one\n",
      kBatch, kBatch, kContext, median(cost.whole_step), median(cost.divided_step));
  fmt::print("  a step takes longer by, with all layers changed before it:\n");
  fmt::print("    MLPs dropped            {:8.2f} ms ({} of weights given back)\n",
             median(cost.drop_mlp),
             format_bytes(spec.layers * component_bytes(spec, Component::kMlp, Precision::kBf16)));
  const double copy = plain_copy_ms(moved);
  fmt::print(
      "    attention dropped, KV   {:8.2f} ms ({} of KV moved, whose plain copy takes {:.2f})\n",
      median(cost.drop_attention), format_bytes(moved), copy);
  fmt::print("    attention fetched, KV   {:8.2f} ms\n", median(cost.fetch_attention));
  fmt::print("    MLPs fetched            {:8.2f} ms\n", median(cost.fetch_mlp));
  fmt::print("  weights fetched in the background: {} in {:.0f} ms\n", format_bytes(weights),
             median(cost.fetching));
}

// What AMOEBA's base solutions cost here, which keep the cores from computing as long.
void report_base_solutions(const ModelSpec& spec) {
  const KvForm kv{.block_tokens = kBlockTokens};
  const std::int64_t layer_block = kv_layer_block_bytes(spec, kv);
  fmt::print("base solutions, on the same cores:\n");
  fmt::print("  KV, migrated and defragmented: {:8.2f} ms, {} of reserved memory for each device\n",
             spec.layers * migrate_and_defragment_ms(layer_block, kLive),
             format_bytes(spec.layers * kLive * layer_block / 2));
  fmt::print("  MLPs, the kept part moved to the front: {:8.2f} ms for all layers\n",
             spec.layers * partial_swap_ms(spec));
}

// What each step costs that changes this many layers, against moving everything through the host.
void report_by_layers_per_step(const ModelSpec& spec) {
  Pair pair(spec);
  for (const HoldShards& hold : all_layers(
           spec, [&](int layer) { return one_copy(spec, layer, Component::kMlp, Way::kShards); })) {
    pair.prepare({hold});
    pair.commit_and_step(1);
  }
  fmt::print("layers whose KV moves before one step, by shards, and what the step takes (ms):\n");
  for (int count = 1; count <= spec.layers; count *= 2) {
    std::vector<HoldShards> there;
    std::vector<HoldShards> back;
    for (int layer = 0; layer < count; ++layer) {
      there.push_back(one_copy(spec, layer, Component::kAttention, Way::kShards));
      back.push_back(whole_copies(layer, Component::kAttention));
    }
    const double raw = pair.raw_step();
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      pair.prepare(there);
      times.push_back(pair.commit_and_step(there.size()));
      pair.prepare(back);
      pair.commit_and_step(back.size());
    }
    fmt::print("  {:3} layers {:8.2f}  (raw {:.2f})\n", count, median(times), raw);
  }
  const KvForm kv{.block_tokens = kBlockTokens};
  const std::int64_t all =
      kHomes * (kLive * kv_block_bytes(spec, kv) +
                spec.layers *
                    (component_bytes(spec, Component::kAttention, Precision::kBf16) +
                     component_bytes(spec, Component::kMlp, Precision::kBf16)) /
                    2);
  fmt::print(
      "  through host memory (Seesaw): all KV out and in, divided weights in: {:8.1f} more\n",
      plain_copy_ms(all) + plain_copy_ms(kHomes * kLive * kv_block_bytes(spec, kv)));
}

void run(const std::string& size, int rounds) {
  const ModelSpec spec = spec_of(size);
  fmt::print("{}: {} layers of {}, 2 devices of one core, {} KV blocks each, {} live, bf16\n", size,
             spec.layers, spec.hidden, kBlocks, kLive);
  report(spec, Way::kShards, rounds);
  report(spec, Way::kLayers, rounds);
  report_base_solutions(spec);
  report_by_layers_per_step(spec);
}

}  // namespace
}  // namespace protean

int main(int argc, char** argv) {
  protean::run(argc > 1 ? argv[1] : "150m", argc > 2 ? std::atoi(argv[2]) : 5);
}
