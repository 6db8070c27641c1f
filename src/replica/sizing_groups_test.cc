// Sizes of several devices and replicas.

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "base/units.h"
#include "cost/memory.h"
#include "replica/model_options.h"
#include "replica/sizing.h"
#include "replica/sizing_scene_for_test.h"
#include "tests/checkpoints/checkpoints.h"
#include "worker/fabric.h"
#include "worker/rank.h"

namespace protean {
namespace {

TEST(Sizing, ReplicasShareCpusAndMemory) {
  const ModelSpec spec = spec_of_1k_context();
  const auto one = choose_sizing({}, spec, kMachine);
  const auto three = choose_sizing({.group = {.replicas = 3}}, spec, kMachine);
  ASSERT_TRUE(one.ok() && three.ok());
  ASSERT_EQ(three->cpus.size(), 3U);
  for (int replica = 0; replica < 3; ++replica) {
    const CpuShare& share = three->cpus[static_cast<std::size_t>(replica)];
    EXPECT_EQ(share.where.cpus, std::vector{replica});
    EXPECT_EQ(share.threads, 1);
  }
  EXPECT_EQ(three->form.group.size(), 1U);
  EXPECT_EQ(three->weight_bytes, one->weight_bytes);
  EXPECT_LT(3 * (three->weight_bytes + three->kv_bytes), kGiB);
  EXPECT_TRUE(three->warnings.empty());
}

TEST(Sizing, EachReplicaIsAGroupOfDevices) {
  const Machine machine = {.topology = {.cpus = {{.cpu = 0},
                                                 {.cpu = 1, .core = 1},
                                                 {.cpu = 2, .core = 2},
                                                 {.cpu = 3, .core = 3}}},
                           .cores = 4,
                           .free_memory_bytes = kGiB};
  const ModelSpec spec = spec_of_1k_context();
  for (const GroupOptions& group :
       {GroupOptions{.devices = "4", .replicas = 2}, GroupOptions{.replicas = 2, .tensor = 2},
        GroupOptions{.replicas = 2, .pipeline = 2}}) {
    const auto sizing = choose_sizing({.group = group}, spec, machine);
    ASSERT_TRUE(sizing.ok()) << sizing.error().message;
    EXPECT_EQ(sizing->form.group.size(), 2U);
    ASSERT_EQ(sizing->cpus.size(), 4U);
    EXPECT_EQ(sizing->cpus[3].where.cpus, std::vector{3});
    EXPECT_EQ(sizing->devices[2].memory_bytes, kGiB / 4);
  }
  const auto odd = choose_sizing({.group = {.devices = "3", .replicas = 2}}, spec, machine);
  ASSERT_FALSE(odd.ok());
  EXPECT_EQ(odd.error().message,
            "--devices 3: 3 devices do not divide among --data-parallel-size 2: use a multiple of "
            "it, such as 4");
}

// Nodes of two cores each.
Machine machine_of_nodes(const std::vector<std::int64_t>& free_bytes) {
  Machine machine;
  for (int node = 0; node < static_cast<int>(free_bytes.size()); ++node) {
    for (const int cpu : {2 * node, 2 * node + 1}) {
      machine.topology.cpus.push_back({.cpu = cpu, .core = cpu, .node = node});
    }
    machine.topology.memory_nodes.push_back(node);
    const std::int64_t bytes = free_bytes[static_cast<std::size_t>(node)];
    machine.node_free_bytes[node] = bytes;
    machine.free_memory_bytes += bytes;
    machine.cores += node == 0 ? 1 : 2;
  }
  return machine;
}

TEST(Sizing, EachNumaNodeIsADeviceWithAReplicaThatFits) {
  const ModelSpec spec = spec_of_1k_context();
  const auto sizing = choose_sizing({}, spec, machine_of_nodes({kGiB, kGiB / 2}));
  ASSERT_TRUE(sizing.ok()) << sizing.error().message;
  EXPECT_EQ(sizing->replicas(), 2);
  ASSERT_EQ(sizing->devices.size(), 2U);
  EXPECT_EQ(sizing->cpus[1].where.cpus, (std::vector{2, 3}));
  EXPECT_EQ(sizing->cpus[1].where.nodes, std::vector{1});
  EXPECT_EQ(sizing->devices[0].memory_bytes, kGiB);
  EXPECT_EQ(sizing->devices[1].memory_bytes, kGiB / 2);
  Machine limited = machine_of_nodes({kGiB, kGiB});
  limited.free_memory_bytes = kGiB;  // by a container
  EXPECT_EQ(choose_sizing({}, spec, limited)->devices[1].memory_bytes, kGiB / 2);
  limited.cores = 1;
  EXPECT_EQ(choose_sizing({}, spec, limited)->devices.size(), 1U) << "CPUs of one node are busy";
}

// Four nodes with so much free memory each.
Machine four_nodes(std::int64_t each) {
  return machine_of_nodes({each, each, each, each});
}

// The less memory there is, the fewer replicas, until no division fits. The message then says what
// would.
TEST(Sizing, ANodeThatIsTooSmallForAReplicaHoldsAPartOfIt) {
  const ModelSpec spec = spec_of_1k_context();
  ModelOptions options{.max_model_len = "1024", .max_num_seqs = 8, .max_num_batched_tokens = 64};
  std::vector<std::string> forms;
  for (std::int64_t each = 8 * kMiB; each > 0; each -= 32 * kKiB) {
    const auto sizing = choose_sizing(options, spec, four_nodes(each));
    if (sizing.ok()) {
      EXPECT_EQ(sizing->max_model_len, 1024);
      const std::string form =
          fmt::format("{} of {}, {} stages", sizing->replicas(), sizing->form.group.size(),
                      stages_of(sizing->form).size());
      if (forms.empty() || forms.back() != form) {
        forms.push_back(form);
      }
      continue;
    }
    const std::string& message = sizing.error().message;
    const std::string kv = "give --kv-cache-memory ";
    if (const std::size_t at = message.find(kv); at != std::string::npos) {
      ModelOptions given = options;
      given.kv_cache_memory = message.substr(at + kv.size());
      EXPECT_TRUE(choose_sizing(given, spec, four_nodes(each)).ok()) << message;
      continue;
    }
    const std::string free = ": free ";
    const std::size_t at = message.find(free);
    ASSERT_NE(at, std::string::npos) << message;
    const std::size_t value = at + free.size();
    const auto more = parse_bytes(message.substr(value, message.find(" of", value) - value));
    options.kv_cache_memory = "1MiB";
    EXPECT_TRUE(choose_sizing(options, spec, four_nodes(each + *more / 4)).ok()) << message;
    break;
  }
  EXPECT_EQ(forms, (std::vector<std::string>{"4 of 1, 1 stages", "2 of 2, 1 stages",
                                             "1 of 4, 4 stages", "1 of 1, 1 stages"}));
}

// If no division holds the longest sequence that the model allows, the one with the longest is
// taken.
TEST(Sizing, ALongerContextIsWorthFewerReplicas) {
  const ModelSpec spec = spec_of_1k_context();
  const ModelOptions options{.max_num_batched_tokens = 64};
  const auto whole = choose_sizing(options, spec, machine_of_nodes({8 * kMiB, 8 * kMiB}));
  const auto half = choose_sizing(options, spec, machine_of_nodes({3 * kMiB, 3 * kMiB}));
  ASSERT_TRUE(whole.ok() && half.ok()) << half.error().message;
  EXPECT_EQ(whole->replicas(), 2);
  EXPECT_EQ(half->replicas(), 1);
  ModelOptions two = options;
  two.group.replicas = 2;
  const auto shorter = choose_sizing(two, spec, machine_of_nodes({3 * kMiB, 3 * kMiB}));
  ASSERT_TRUE(shorter.ok()) << shorter.error().message;
  EXPECT_LT(shorter->max_model_len, half->max_model_len);
}

TEST(Sizing, NodesThatAreUnevenHoldWhatTheyHoldTogether) {
  const ModelSpec spec = spec_of_1k_context();
  const ModelOptions options{.max_model_len = "1024", .max_num_batched_tokens = 64};
  const auto sizing = choose_sizing(options, spec, machine_of_nodes({16 * kMiB, kMiB}));
  ASSERT_TRUE(sizing.ok()) << sizing.error().message;
  EXPECT_EQ(sizing->devices.size(), 1U);
  EXPECT_EQ(sizing->devices.front().memory_bytes, 17 * kMiB);
  EXPECT_EQ(sizing->cpus.front().where.nodes, (std::vector{0, 1}));
}

// What is checked after a division may need another one.
TEST(Sizing, ADivisionThatIsRefusedLaterIsFollowedByTheNext) {
  const ModelSpec spec = spec_of_1k_context();
  const auto sizing = choose_sizing({}, spec, machine_of_nodes({kGiB, kGiB}), [](Sizing& tried) {
    return tried.replicas() == 2 ? Status(make_error(ErrorCode::kExhausted, "too little"))
                                 : Status();
  });
  ASSERT_TRUE(sizing.ok()) << sizing.error().message;
  EXPECT_EQ(sizing->replicas(), 1);
  EXPECT_EQ(sizing->devices.size(), 2U);
}

TEST(Sizing, FlagsThatNameDevicesOrADivisionSayWhatIsTaken) {
  const ModelSpec spec = spec_of_1k_context();
  const Machine machine = machine_of_nodes({kGiB, kGiB});
  for (const ModelOptions& options :
       {ModelOptions{.group = {.replicas = 1}}, ModelOptions{.compute = {.threads = 4}},
        ModelOptions{.compute = {.cpus = "0-3"}}, ModelOptions{.device_memory = "1536MiB"},
        ModelOptions{.group = {.devices = "1"}}}) {
    const auto sizing = choose_sizing(options, spec, machine);
    ASSERT_TRUE(sizing.ok()) << sizing.error().message;
    EXPECT_EQ(sizing->devices.size(), 1U);
    EXPECT_EQ(sizing->cpus.front().where.cpus, (std::vector{0, 1, 2, 3}));
  }
  EXPECT_EQ(choose_sizing({.group = {.pipeline = 2}}, spec, machine)->replicas(), 1);
}

TEST(Sizing, MoreReplicasThanCpusIsAWarning) {
  const auto four = choose_sizing({.group = {.replicas = 4}}, spec_of_1k_context(), kMachine);
  ASSERT_TRUE(four.ok()) << four.error().message;
  ASSERT_EQ(four->cpus.size(), 4U);
  EXPECT_EQ(four->cpus[3].threads, 1);
  EXPECT_EQ(four->cpus[3].where.cpus, (std::vector{0, 1, 2}));
  ASSERT_EQ(four->warnings.size(), 1U);
  EXPECT_EQ(four->warnings[0],
            "4 replicas share 3 CPUs and wait for each other: --data-parallel-size 3 would not");
}

TEST(Sizing, ReplicasWithoutRoomAreRefusedWithTheNumberThatFits) {
  const ModelSpec spec = spec_of_1k_context();
  ModelOptions options{.max_model_len = "1024", .group = {.replicas = 400}};
  const auto refused = choose_sizing(options, spec, kMachine);
  ASSERT_FALSE(refused.ok());
  const std::string& message = refused.error().message;
  const std::string flag = ", --data-parallel-size ";
  const std::size_t at = message.find(flag);
  ASSERT_NE(at, std::string::npos) << message;
  options.group.replicas = std::stoi(message.substr(at + flag.size()));
  EXPECT_GT(options.group.replicas, 1);
  EXPECT_TRUE(choose_sizing(options, spec, kMachine).ok()) << message;
  const auto too_much =
      choose_sizing({.device_memory = "600MiB", .group = {.replicas = 2}}, spec, kMachine);
  ASSERT_FALSE(too_much.ok());
  EXPECT_EQ(too_much.error().message,
            "--device-memory 600MiB: only 512.0 MiB are free for each of 2 devices: ask for less");
}

// Returns the bytes that the devices of these replicas take each, as workers allocate them.
std::int64_t allocated_bytes(const ModelOptions& options, const ModelSpec& spec,
                             const Sizing& sizing) {
  const auto devices = static_cast<int>(sizing.devices.size());
  const int rows =
      joint_rows(options.max_num_batched_tokens, sizing.replicas(), options.max_num_seqs);
  const auto fabric = Fabric::create({.devices = devices,
                                      .rows = rows,
                                      .hidden = spec.hidden,
                                      .steps_in_flight = joint_steps(sizing)});
  const auto scratch = Scratch::create(spec, rows, kLogitRows, widest_share(sizing.form));
  return sizing.budget.pages * sizing.budget.page_bytes + (*fabric)->bytes() / devices +
         scratch->bytes();
}

TEST(Sizing, BuffersOfReplicasThatMayBeJoinedAreWithinDeviceMemory) {
  const ModelSpec spec = spec_of_1k_context();
  for (const int replicas : {2, 3}) {
    ModelOptions options{.device_memory = "48MiB",
                         .may_morph = true,
                         .ladder = {Precision::kW8},
                         .group = {.replicas = replicas, .most_tensor = 2}};
    const auto sizing = choose_sizing(options, spec, kMachine);
    ASSERT_TRUE(sizing.ok()) << sizing.error().message;
    EXPECT_TRUE(sizing->joins);
    const std::int64_t bytes = allocated_bytes(options, spec, *sizing);
    EXPECT_LE(bytes, 48 * kMiB + 64 * kKiB) << "buffers are aligned";
    EXPECT_GT(bytes, 47 * kMiB) << "KV takes the rest";
    options.device_memory = "16MiB";
    const auto refused = choose_sizing(options, spec, kMachine);
    ASSERT_FALSE(refused.ok());
    options.device_memory = named_value(refused.error().message, "use --device-memory");
    EXPECT_TRUE(choose_sizing(options, spec, kMachine).ok()) << refused.error().message;
  }
}

// Devices as a file describes them.
ModelOptions with_devices(const TemporaryDirectory& directory, const std::string& toml) {
  const auto path = directory.path() / "devices.toml";
  std::ofstream(path) << toml;
  return {.max_model_len = "1024", .group = {.devices = path, .pipeline = 2}};
}

TEST(Sizing, MemoryOfADeviceFileIsABoundThatKvMayFill) {
  const TemporaryDirectory directory;
  const ModelSpec spec = spec_of_1k_context();
  const auto sized = [&](const std::string& first, const std::string& second) {
    return choose_sizing(
        with_devices(directory, fmt::format("[[device]]\ncpus = \"0\"\nmemory = \"{}\"\n"
                                            "[[device]]\ncpus = \"1\"\nmemory = \"{}\"\n",
                                            first, second)),
        spec, kMachine);
  };
  const auto flag =
      choose_sizing({.max_model_len = "1024", .device_memory = "16MiB", .group = {.pipeline = 2}},
                    spec, kMachine);
  const auto file = sized("16MiB", "16MiB");
  ASSERT_TRUE(flag.ok() && file.ok()) << file.error().message;
  EXPECT_EQ(file->form.kv.blocks, flag->form.kv.blocks);
  EXPECT_TRUE(file->warnings.empty());
  int refused = 0;
  for (int kib = 256; kib < 16 * 1024; kib += 256) {
    const std::string bytes = fmt::format("{}KiB", kib);
    const auto small = sized(bytes, bytes);
    if (small.ok()) {
      continue;
    }
    ++refused;
    const std::string& message = small.error().message;
    const std::string remedy = "memory = \"";
    const std::size_t at = message.find(remedy);
    ASSERT_NE(at, std::string::npos) << message;
    const std::size_t value = at + remedy.size();
    const std::string enough = message.substr(value, message.find('"', value) - value);
    EXPECT_TRUE(sized(enough, enough).ok()) << message;
  }
  EXPECT_GT(refused, 10);
}

// Returns options for two devices with memory of their own.
ModelOptions with_memory(const TemporaryDirectory& directory, const std::string& first,
                         const std::string& second) {
  return with_devices(directory, fmt::format("[[device]]\ncpus = \"0\"\nmemory = \"{}\"\n"
                                             "[[device]]\ncpus = \"1\"\nmemory = \"{}\"\n",
                                             first, second));
}

// Two replicas of one device each.
ModelOptions replicas_with_memory(const TemporaryDirectory& directory, const std::string& first,
                                  const std::string& second) {
  ModelOptions options = with_memory(directory, first, second);
  options.group.replicas = 2;
  options.group.pipeline = 1;
  return options;
}

std::vector<int> layers_of_stages(const Form& form) {
  std::vector<int> layers;
  for (const Stage& stage : stages_of(form)) {
    layers.push_back(stage.layer_count);
  }
  return layers;
}

TEST(Sizing, StagesUseTheMemoryOfTheirDevices) {
  const TemporaryDirectory directory;
  const ModelSpec spec = spec_of_1k_context();
  const auto alike = choose_sizing(with_memory(directory, "22MiB", "22MiB"), spec, kMachine);
  ASSERT_TRUE(alike.ok()) << alike.error().message;
  EXPECT_EQ(layers_of_stages(alike->form), (std::vector<int>{2, 2}));
  for (const bool first : {true, false}) {
    const std::array<std::string, 2> memory = {first ? "60MiB" : "22MiB",
                                               first ? "22MiB" : "60MiB"};
    const auto sizing = choose_sizing(with_memory(directory, memory[0], memory[1]), spec, kMachine);
    ASSERT_TRUE(sizing.ok()) << sizing.error().message;
    EXPECT_TRUE(sizing->warnings.empty());
    EXPECT_EQ(layers_of_stages(sizing->form),
              first ? (std::vector<int>{3, 1}) : (std::vector<int>{1, 3}));
    EXPECT_GT(2 * sizing->form.kv.blocks, 3 * alike->form.kv.blocks);
    const PageBudget& budget = sizing->budget;
    const std::int64_t activations = sizing->device_bytes - budget.pages * budget.page_bytes;
    for (std::size_t device = 0; device < 2; ++device) {
      const std::int64_t pages = budget.pages - sizing->form.group[device].lacking_pages;
      EXPECT_LE(pages * budget.page_bytes + activations, *parse_bytes(memory[device]));
      EXPECT_EQ(pages_on(spec, sizing->form, static_cast<int>(device), budget.page_bytes),
                budget.pages)
          << "no page is of no use";
    }
  }
  ModelOptions named = with_memory(directory, "60MiB", "22MiB");
  named.group.stages = "2,2";
  const auto even = choose_sizing(named, spec, kMachine);
  ASSERT_TRUE(even.ok());
  EXPECT_EQ(layers_of_stages(even->form), (std::vector<int>{2, 2}));
  EXPECT_EQ(even->form.kv.blocks, alike->form.kv.blocks);
  EXPECT_LE(even->device_bytes, *parse_bytes("22MiB")) << "the other stage has no more blocks";
}

TEST(Sizing, StagesTakeNoMoreThanTheyNeed) {
  const TemporaryDirectory directory;
  const ModelSpec spec = spec_of_1k_context();
  const auto alike = choose_sizing(with_memory(directory, "300MiB", "300MiB"), spec, kMachine);
  const auto more = choose_sizing(with_memory(directory, "500MiB", "300MiB"), spec, kMachine);
  ASSERT_TRUE(alike.ok() && more.ok());
  EXPECT_EQ(more->form, alike->form);
  EXPECT_EQ(more->device_bytes, alike->device_bytes);
  EXPECT_TRUE(more->warnings.empty());
}

// Only a policy lets groups form for requests that no replica holds.
TEST(Sizing, AnyLengthIsThatOfTheWidestGroupThatFormsByItself) {
  const ModelSpec spec = spec_of_1k_context();
  int shorter = 0;
  for (int kib = 1024; kib < 16 * 1024; kib += 256) {
    ModelOptions options{.device_memory = fmt::format("{}KiB", kib),
                         .may_morph = true,
                         .ladder = {Precision::kW8},
                         .group = {.replicas = 2, .most_tensor = 2},
                         .max_num_seqs = 8,
                         .max_num_batched_tokens = 64};
    const auto alone = choose_sizing(options, spec, kMachine);
    if (!alone.ok() || alone->max_model_len == spec.max_context) {
      continue;
    }
    ++shorter;
    EXPECT_LE(alone->max_model_len, alone->largest_kv_blocks * 16);
    options.scales = true;
    const auto scales = choose_sizing(options, spec, kMachine);
    ASSERT_TRUE(scales.ok()) << scales.error().message;
    EXPECT_GT(scales->max_model_len, alone->max_model_len);
    options.scales = false;
    options.max_model_len = fmt::format("{}", scales->max_model_len);
    EXPECT_TRUE(choose_sizing(options, spec, kMachine).ok()) << "an operator may group them";
  }
  EXPECT_GT(shorter, 0);
}

TEST(Sizing, EachReplicaTakesTheMemoryOfItsDevice) {
  const TemporaryDirectory directory;
  const ModelSpec spec = spec_of_1k_context();
  const std::array<std::string, 2> memory = {"60MiB", "22MiB"};
  for (const std::vector<Precision>& ladder :
       {std::vector<Precision>(), std::vector{Precision::kW8}}) {
    const auto sized = [&](const std::string& first, const std::string& second) {
      ModelOptions options = replicas_with_memory(directory, first, second);
      options.ladder = ladder;
      return choose_sizing(options, spec, kMachine).value();
    };
    const Sizing sizing = sized(memory[0], memory[1]);
    EXPECT_TRUE(sizing.warnings.empty());
    ASSERT_EQ(sizing.unequal.size(), 2U);
    const PageBudget& budget = sizing.budget;
    const std::int64_t activations = sizing.device_bytes - budget.pages * budget.page_bytes;
    for (const int replica : {0, 1}) {
      const std::string& own = memory[static_cast<std::size_t>(replica)];
      const Sizing alike = sized(own, own);
      const Sizing one = sizing_of(sizing, replica);
      EXPECT_TRUE(alike.unequal.empty());
      EXPECT_EQ(one.form.kv.blocks, alike.form.kv.blocks);
      EXPECT_EQ(one.largest_kv_blocks, alike.largest_kv_blocks);
      EXPECT_EQ(budget.pages - one.form.group.front().lacking_pages, alike.budget.pages);
      EXPECT_LE(alike.budget.pages * budget.page_bytes + activations, *parse_bytes(own));
    }
    EXPECT_EQ(sizing.form, sizing_of(sizing, 1).form) << "that of the least";
    EXPECT_EQ(lacking_pages(sizing), sizing.form.group.front().lacking_pages);
  }
}

TEST(Sizing, ALengthThatOnlyAGroupOfUnequalReplicasHoldsMayBeGiven) {
  const TemporaryDirectory directory;
  const ModelSpec spec = spec_of_1k_context();
  ModelOptions options = replicas_with_memory(directory, "60MiB", "22MiB");
  options.ladder = {Precision::kW8};
  const auto sizing = choose_sizing(options, spec, kMachine);
  ASSERT_TRUE(sizing.ok()) << sizing.error().message;
  ASSERT_FALSE(sizing->unequal.empty());
  const std::int64_t most = sizing->largest_kv_blocks;
  options.max_model_len = "auto";
  options.scales = true;
  EXPECT_EQ(widest_kv_blocks(options, spec, *sizing, most), most);
  options.max_model_len = "1024";
  EXPECT_GT(widest_kv_blocks(options, spec, *sizing, most), most);
}

TEST(Sizing, ReplicasThatNeedEqualMemoryTakeThatOfTheSmallest) {
  const TemporaryDirectory directory;
  const ModelSpec spec = spec_of_1k_context();
  ModelOptions options = replicas_with_memory(directory, "500MiB", "300MiB");
  const auto enough = choose_sizing(options, spec, kMachine);
  ASSERT_TRUE(enough.ok()) << enough.error().message;
  EXPECT_TRUE(enough->unequal.empty()) << "no sequences need more";
  options = replicas_with_memory(directory, "60MiB", "22MiB");
  options.equal_replicas = true;
  const auto equal = choose_sizing(options, spec, kMachine);
  ASSERT_TRUE(equal.ok()) << equal.error().message;
  EXPECT_TRUE(equal->unequal.empty());
  EXPECT_EQ(equal->form.group.front().lacking_pages, 0);
  EXPECT_EQ(equal->warnings.size(), 1U);
  options.equal_replicas = false;
  options.kv_cache_memory = "1MiB";
  const auto asked = choose_sizing(options, spec, kMachine);
  ASSERT_TRUE(asked.ok()) << asked.error().message;
  EXPECT_TRUE(asked->unequal.empty()) << "each has the KV that is asked for";
}

TEST(Sizing, DevicesThatShareLayersTakeAsMuchAsTheSmallest) {
  const TemporaryDirectory directory;
  ModelOptions options = with_memory(directory, "60MiB", "22MiB");
  options.group.pipeline = 1;
  const auto sizing = choose_sizing(options, spec_of_1k_context(), kMachine);
  ASSERT_TRUE(sizing.ok()) << sizing.error().message;
  ASSERT_EQ(sizing->warnings.size(), 1U);
  EXPECT_EQ(sizing->warnings[0],
            "device 1 has 22.0 MiB and device 0 has 60.0 MiB: every device takes as much as the "
            "smallest");
}

TEST(Sizing, MemoryIsGivenByAFileOrAFlag) {
  const TemporaryDirectory directory;
  ModelOptions options = with_devices(directory,
                                      "[[device]]\ncpus = \"0\"\nmemory = \"16MiB\"\n"
                                      "[[device]]\ncpus = \"1\"\n");
  options.device_memory = "20MiB";
  const auto both = choose_sizing(options, spec_of_1k_context(), kMachine);
  ASSERT_FALSE(both.ok());
  EXPECT_EQ(both.error().message, "--device-memory 20MiB: " + options.group.devices +
                                      " gives the memory of its devices: remove one of them");
}

}  // namespace
}  // namespace protean
