// Measures what it costs to let replicas become one by shards or by layers and part again while
// they decode (AMOEBA section 4.2, figures 9 to 11), the memory that it takes, and what copying the
// same bytes, AMOEBA's base solutions, the way through host memory and a restart cost. Prints
// medians; compare only numbers of one run. Usage: reshard_bench [builtin|150m|1b] [rounds]

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "base_solutions.h"
#include "cost/group_cost.h"
#include "cost/memory.h"
#include "joined_replicas.h"

namespace protean::reshard {
namespace {

constexpr int kSteps = 12;          // that a raw step's median is of
constexpr std::size_t kAtOnce = 8;  // as --regroup-at-once 8

ModelSpec spec_of(const std::string& size) {
  ModelSpec spec;
  spec.architecture = "bench";
  spec.layers = size == "1b" ? 16 : size == "150m" ? 12 : 4;
  spec.hidden = size == "1b" ? 2048 : size == "150m" ? 1024 : 256;
  spec.ffn = size == "1b" ? 8192 : size == "150m" ? 2816 : 768;
  spec.vocab = 8192;
  spec.max_context = 2048;
  const int head = spec.hidden / 64 < 8 ? 32 : 64;
  spec.attention = {.heads = spec.hidden / head, .kv_heads = 8, .head_dim = head};
  return spec;
}

enum class Way { kShards, kLayers };

// Some replicas of a model that become one.
struct Scene {
  ModelSpec spec;
  int homes = 2;
  Way way = Way::kShards;

  HoldShards one_copy(int layer, Component component) const {
    HoldShards hold{layer, component, {}};
    for (int home = 0; home < homes; ++home) {
      const bool keeps = layer * homes / spec.layers == home;
      hold.runs.push_back(way == Way::kShards ? ShardRun{home, 1} : ShardRun{0, keeps ? homes : 0});
    }
    return hold;
  }
  HoldShards whole_copies(int layer, Component component) const {
    return {layer, component,
            std::vector<ShardRun>(static_cast<std::size_t>(homes), ShardRun{0, homes})};
  }
  std::vector<HoldShards> drop(Component component, int layers) const {
    std::vector<HoldShards> holds;
    for (int layer = 0; layer < layers; ++layer) {
      holds.push_back(one_copy(layer, component));
    }
    return holds;
  }
  std::vector<HoldShards> fetch(Component component, int layers) const {
    std::vector<HoldShards> holds;
    for (int layer = 0; layer < layers; ++layer) {
      holds.push_back(whole_copies(layer, component));
    }
    return holds;
  }
  // Returns the KV bytes that all devices receive together.
  std::int64_t kv_bytes() const {
    Form form = single_device_form(spec, Precision::kBf16, DeviceId{0},
                                   {.block_tokens = kBlockTokens, .blocks = homes * kBlocks});
    form.shards = homes;
    form.group.assign(static_cast<std::size_t>(homes), whole_model(spec.layers, homes, {}));
    std::vector<Copy> alone;
    for (int home = 0; home < homes; ++home) {
      alone.push_back({home});
    }
    const std::vector<std::int64_t> live(static_cast<std::size_t>(homes), kLive);
    std::int64_t sum = 0;
    for (const HoldShards& hold : drop(Component::kAttention, spec.layers)) {
      const auto each = kv_bytes_received(spec, form, hold, alone, live);
      sum = std::accumulate(each.begin(), each.end(), sum);
    }
    return sum;
  }
};

std::int64_t bytes_of(const ModelSpec& spec, Component component) {
  return spec.layers * component_bytes(spec, component, Precision::kBf16);
}

double raw_step(JoinedReplicas& replicas) {
  std::vector<double> times;
  for (int i = 0; i < kSteps; ++i) {
    times.push_back(replicas.step());
  }
  return median(times);
}

struct Cost {
  std::vector<double> drop_mlp, drop_attention, fetch_attention, fetch_mlp;  // beyond raw steps
  std::vector<double> fetching;  // weights of all layers, in the background
  std::vector<double> whole_step, divided_step;
};

// Commits changes before one step, and returns what they add to it. Stops the program if the step
// draws other tokens than before.
double change(JoinedReplicas& replicas, const std::vector<HoldShards>& holds,
              double* preparing_ms = nullptr) {
  const std::vector<TokenId> before = replicas.tokens();
  const double prepared_ms = replicas.prepare(holds);
  const double took_ms = replicas.commit_and_step(holds.size());
  check(replicas.tokens() == before, "a change of groups changes no token");
  if (preparing_ms != nullptr) {
    *preparing_ms += prepared_ms;
  }
  return took_ms - raw_step(replicas);
}

Cost measure(const Scene& scene, PackedWeights& weights, int rounds, Moves moves) {
  JoinedReplicas replicas(scene.spec, scene.homes, weights, moves);
  const int all = scene.spec.layers;
  Cost cost;
  for (int round = 0; round < rounds; ++round) {
    double fetching_ms = 0;
    cost.whole_step.push_back(raw_step(replicas));
    cost.drop_mlp.push_back(change(replicas, scene.drop(Component::kMlp, all)));
    cost.drop_attention.push_back(change(replicas, scene.drop(Component::kAttention, all)));
    cost.divided_step.push_back(raw_step(replicas));
    cost.fetch_attention.push_back(
        change(replicas, scene.fetch(Component::kAttention, all), &fetching_ms));
    cost.fetch_mlp.push_back(change(replicas, scene.fetch(Component::kMlp, all), &fetching_ms));
    cost.fetching.push_back(fetching_ms);
  }
  return cost;
}

void report(const Scene& scene, PackedWeights& weights, int rounds, Moves moves = {}) {
  const Cost cost = measure(scene, weights, rounds, moves);
  const std::int64_t moved = scene.kv_bytes();
  const std::int64_t dropped =
      bytes_of(scene.spec, Component::kMlp) +
      (moves.keeps_attention ? 0 : bytes_of(scene.spec, Component::kAttention));
  fmt::print(
      "{} replicas by {}{}: a joint decode step takes {:.1f} ms with whole copies, {:.1f} with "
      "one; the tokens are the same; each device has {} of weights less for KV\n",
      scene.homes, scene.way == Way::kShards ? "shards" : "layers",
      moves.keeps_attention ? " that keep attention weights" : "", median(cost.whole_step),
      median(cost.divided_step), format_bytes(dropped * (scene.homes - 1) / scene.homes));
  fmt::print("  a step takes longer by, with all layers changed before it:\n");
  fmt::print("    MLPs dropped            {:8.2f} ms ({} of weights each)\n", median(cost.drop_mlp),
             format_bytes(bytes_of(scene.spec, Component::kMlp)));
  fmt::print(
      "    attention dropped, KV   {:8.2f} ms ({} of KV moved, whose plain copy takes {:.2f})\n",
      median(cost.drop_attention), format_bytes(moved), plain_copy_ms(scene.homes, moved));
  fmt::print("    attention fetched, KV   {:8.2f} ms\n", median(cost.fetch_attention));
  fmt::print("    MLPs fetched            {:8.2f} ms\n", median(cost.fetch_mlp));
  fmt::print("  weights fetched in the background in {:.0f} ms\n", median(cost.fetching));
}

// What the steps around an exchange of KV take longer if it is committed while the first one runs:
// in place between the two, and overlapped with the first (AMOEBA section 3.1), with all of a
// core's time for it or the share that servers give it.
void report_overlap(const Scene& scene, PackedWeights& weights, int rounds) {
  const int all = scene.spec.layers;
  const std::vector<HoldShards> drops = scene.drop(Component::kAttention, all);
  const std::vector<HoldShards> fetches = scene.fetch(Component::kAttention, all);
  const std::int64_t in_all = 2 * rounds * kLive * (scene.homes - 1) *
                              kv_block_bytes(scene.spec, {.block_tokens = kBlockTokens}) / 2;
  fmt::print("  two steps around the exchange of KV take longer by, there and back:\n");
  const Moves in_place;
  const Moves overlapped{.early = true};
  const Moves paced{.early = true, .background_share = WorkerOptions().background_share};
  for (const auto& [name, moves] : {std::pair("in place", in_place),
                                    {"in place and overlapped", overlapped},
                                    {"overlapped and paced", paced}}) {
    JoinedReplicas replicas(scene.spec, scene.homes, weights, moves);
    change(replicas, scene.drop(Component::kMlp, all));
    std::vector<double> there;
    std::vector<double> back;
    for (int round = 0; round < rounds; ++round) {
      for (const bool to_one : {true, false}) {
        const double before_ms = raw_step(replicas);
        const std::vector<TokenId> tokens = replicas.tokens();
        replicas.prepare(to_one ? drops : fetches);
        const double took_ms = replicas.commit_between_steps(drops.size());
        check(replicas.tokens() == tokens, "a change of groups changes no token");
        (to_one ? there : back).push_back(took_ms - before_ms - raw_step(replicas));
      }
    }
    fmt::print(
        "    {:24} {:8.2f} and {:.2f} ms, {:.0f} % moved in the background\n", name, median(there),
        median(back),
        100.0 * static_cast<double>(replicas.kv_bytes_moved_early()) / static_cast<double>(in_all));
  }
}

// What steps take while replicas become one and part again a few halves at a time, and what they
// take before and after.
void report_in_pieces(const Scene& scene, PackedWeights& weights, int rounds) {
  JoinedReplicas replicas(scene.spec, scene.homes, weights,
                          {.background_share = WorkerOptions().background_share});
  const int all = scene.spec.layers;
  std::vector<double> inside;
  std::vector<double> outside;
  const auto raw_steps = [&] {
    for (int i = 0; i < kSteps; ++i) {
      outside.push_back(replicas.step());
    }
  };
  const auto change_all = [&](std::vector<HoldShards> first, const std::vector<HoldShards>& then) {
    first.insert(first.end(), then.begin(), then.end());
    for (const double took_ms : replicas.change_in_pieces(first, kAtOnce)) {
      inside.push_back(took_ms);
    }
    raw_steps();
  };
  raw_steps();
  for (int round = 0; round < rounds; ++round) {
    change_all(scene.drop(Component::kMlp, all), scene.drop(Component::kAttention, all));
    change_all(scene.fetch(Component::kAttention, all), scene.fetch(Component::kMlp, all));
  }
  const auto p95 = [](std::vector<double>& times) {
    std::sort(times.begin(), times.end());
    return times[times.size() * 95 / 100];
  };
  fmt::print(
      "  P95 of {} steps while all layers change there and back, {} halves at once: {:.1f} ms, of "
      "{} steps before and after {:.1f}\n",
      inside.size(), kAtOnce, p95(inside), outside.size(), p95(outside));
}

// Prints the memory that the exchange takes in addition to the devices' pages, as measured.
void report_memory(const Scene& scene, PackedWeights& weights) {
  const auto each = [&](const std::vector<double>& bytes) {
    return format_bytes(static_cast<std::int64_t>(median(bytes)) / scene.homes);
  };
  const int all = scene.spec.layers;
  for (const bool early : {false, true}) {
    JoinedReplicas replicas(scene.spec, scene.homes, weights, {.early = early});
    change(replicas, scene.drop(Component::kMlp, all));
    std::vector<double> there;
    std::vector<double> back;
    for (int i = 0; i < kTimes; ++i) {
      for (const bool drops : {true, false}) {
        const std::vector<HoldShards> holds = drops ? scene.drop(Component::kAttention, all)
                                                    : scene.fetch(Component::kAttention, all);
        replicas.prepare(holds);
        (drops ? there : back).push_back(static_cast<double>(extra_bytes([&] {
          replicas.commit_between_steps(holds.size());
        })));
      }
    }
    fmt::print(
        "  memory in addition to the pages while KV is exchanged{}: {} for each device, {} on the "
        "way "
        "back\n",
        early ? " and overlapped" : "", each(there), each(back));
  }
}

// What AMOEBA's base solutions cost on the same cores, which keeps them from computing as long.
void report_base_solutions(const Scene& scene) {
  const KvForm kv{.block_tokens = kBlockTokens};
  MigrateAndDefragment migration(scene.homes, scene.spec.layers,
                                 kv_layer_block_bytes(scene.spec, kv));
  const std::int64_t reserved = extra_bytes([&] {
    migration.reserve();
    migration.run();
  });
  const double kv_ms = median_ms([&] { migration.run(); });
  fmt::print("base solutions for {} replicas, on the same cores, all layers:\n", scene.homes);
  fmt::print("  KV, migrated and defragmented:          {:8.2f} ms, {} more for each device\n",
             kv_ms, format_bytes(reserved / scene.homes));
  PartialSwap swap(scene.homes, scene.spec);
  fmt::print("  MLPs, the kept part moved to the front: {:8.2f} ms\n",
             median_ms([&] { swap.run(); }));
}

// What a step takes that changes so many layers. KV moves with attention.
void report_by_layers_per_step(const Scene& scene, PackedWeights& weights) {
  JoinedReplicas replicas(scene.spec, scene.homes, weights);
  const int all = scene.spec.layers;
  fmt::print("layers changed before one step, and what the step takes (ms):\n");
  for (const Component component : {Component::kMlp, Component::kAttention}) {
    for (int count = 1; count <= all; count = count == all ? all + 1 : std::min(2 * count, all)) {
      const std::vector<HoldShards> there = scene.drop(component, count);
      const std::vector<HoldShards> back = scene.fetch(component, count);
      const double raw_ms = raw_step(replicas);
      std::vector<double> to_one;
      std::vector<double> to_all;
      for (int i = 0; i < kTimes; ++i) {
        replicas.prepare(there);
        to_one.push_back(replicas.commit_and_step(there.size()));
        replicas.prepare(back);
        to_all.push_back(replicas.commit_and_step(back.size()));
      }
      fmt::print("  {:3} {:9} dropped {:8.2f}, fetched {:8.2f}  (raw {:.2f})\n", count,
                 component == Component::kMlp ? "MLPs" : "attention", median(to_one),
                 median(to_all), raw_ms);
    }
    change(replicas, scene.drop(component, all));  // attention changes while MLPs are divided
  }
}

// What the way through host memory and a restart take instead.
void report_alternatives(const Scene& scene, PackedWeights& weights) {
  const KvForm kv{.block_tokens = kBlockTokens};
  const std::int64_t all_kv = scene.homes * kLive * kv_block_bytes(scene.spec, kv);
  const std::int64_t divided =
      bytes_of(scene.spec, Component::kAttention) + bytes_of(scene.spec, Component::kMlp);
  fmt::print(
      "  through host memory (Seesaw): all KV out and in, divided weights in: {:8.1f} more\n",
      plain_copy_ms(scene.homes, all_kv + divided) + plain_copy_ms(scene.homes, all_kv));
  const Clock::time_point begin = Clock::now();
  const JoinedReplicas again(scene.spec, scene.homes, weights);
  fmt::print(
      "  a restart, with packed weights in memory:{:8.1f} more, {:.1f} of them to compute the "
      "prompts again\n",
      milliseconds_since(begin), again.prompts_ms());
}

void run(const std::string& size, int rounds) {
  const ModelSpec spec = spec_of(size);
  fmt::print(
      "{}: {} layers of {}, devices of one core, {} sequences of {} tokens each, {} KV blocks "
      "each, {} live, bf16\n",
      size, spec.layers, spec.hidden, kBatch, kContext, kBlocks, kLive);
  PackedWeights weights(spec);
  const Scene two{spec, 2, Way::kShards};
  report(two, weights, rounds);
  report_overlap(two, weights, rounds);
  report_in_pieces(two, weights, rounds);
  report_memory(two, weights);
  report(two, weights, rounds, {.keeps_attention = true});
  report({spec, 2, Way::kLayers}, weights, rounds);
  report_base_solutions(two);
  report_by_layers_per_step(two, weights);
  report_alternatives(two, weights);
  // More devices than cores wait for each other: their times say nothing.
  fmt::print("for bytes and tokens, not for times:\n");
  const Scene four{spec, 4, Way::kShards};
  report(four, weights, 1);
  report_overlap(four, weights, 1);
  report_memory(four, weights);
  report_base_solutions(four);
}

}  // namespace
}  // namespace protean::reshard

int main(int argc, char** argv) {
  const std::string size = argc > 1 ? argv[1] : "150m";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  if ((size != "1b" && size != "150m" && size != "builtin") || rounds < 1) {
    fmt::print(stderr, "usage: reshard_bench [1b | 150m | builtin] [ROUNDS]\n");
    return 2;
  }
  protean::reshard::run(size, rounds);
}
