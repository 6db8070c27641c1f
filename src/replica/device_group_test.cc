#include "replica/device_group.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace protean {
namespace {

ModelSpec spec_with(int kv_heads) {
  ModelSpec spec;
  spec.layers = 16;
  spec.attention = {.heads = 24, .kv_heads = kv_heads, .head_dim = 64};
  return spec;
}

Machine machine_of(int cpus) {
  Machine machine{.cores = cpus, .free_memory_bytes = 1 << 30};
  for (int cpu = 0; cpu < cpus; ++cpu) {
    machine.topology.cpus.push_back({.cpu = cpu, .core = cpu});
  }
  return machine;
}

// Returns "TP x stages of S shards, stage layers, devices".
std::string chosen(const GroupOptions& options, int kv_heads = 8, int cpus = 8) {
  const auto group = choose_group(options, {}, spec_with(kv_heads), machine_of(cpus));
  return group.ok() ? fmt::format("TP {} of {}, stages {}, {} devices", group->division.tensor,
                                  group->shards, fmt::join(group->division.stage_layers, ","),
                                  group->devices.size())
                    : group.error().message;
}

TEST(DeviceGroup, FillsInWhatIsLeftOpen) {
  EXPECT_EQ(chosen({}), "TP 1 of 1, stages 16, 1 devices");
  EXPECT_EQ(chosen({.devices = "4"}), "TP 4 of 4, stages 16, 4 devices");
  EXPECT_EQ(chosen({.devices = "4"}, 2), "TP 1 of 1, stages 4,4,4,4, 4 devices");
  EXPECT_EQ(chosen({.devices = "3"}), "TP 1 of 1, stages 6,5,5, 3 devices");
  EXPECT_EQ(chosen({.devices = "4", .tensor = 2}), "TP 2 of 2, stages 8,8, 4 devices");
  EXPECT_EQ(chosen({.devices = "4", .pipeline = 2}), "TP 2 of 2, stages 8,8, 4 devices");
  EXPECT_EQ(chosen({.tensor = 2}), "TP 2 of 2, stages 16, 2 devices");
  EXPECT_EQ(chosen({.pipeline = 3}), "TP 1 of 1, stages 6,5,5, 3 devices");
  EXPECT_EQ(chosen({.tensor = 2, .stages = "10,6"}), "TP 2 of 2, stages 10,6, 4 devices");
  EXPECT_EQ(chosen({.most_tensor = 4}), "TP 1 of 4, stages 16, 1 devices");
}

TEST(DeviceGroup, SaysWhatWouldWork) {
  EXPECT_EQ(chosen({.tensor = 8}, 12),
            "--tensor-parallel-size 8: a degree is a power of two that divides the model's 12 KV "
            "heads: use 4");
  EXPECT_EQ(chosen({.tensor = 3}),
            "--tensor-parallel-size 3: a degree is a power of two that divides the model's 8 KV "
            "heads: use 2");
  EXPECT_EQ(chosen({.most_tensor = 16}),
            "--max-tensor-parallel-size 16: a degree is a power of two that divides the model's 8 "
            "KV heads: use 8");
  EXPECT_EQ(chosen({.tensor = 4, .most_tensor = 2}),
            "--max-tensor-parallel-size 2 is below the degree in use, 4: remove it or raise it");
  EXPECT_EQ(chosen({.devices = "3", .tensor = 2}),
            "--devices 3: TP 2 with 1 stage takes 2: use --devices 2, or other degrees");
  EXPECT_EQ(chosen({.pipeline = 17}),
            "--pipeline-parallel-size 17: the model has 16 layers, and each stage needs one: use "
            "at most 16");
  EXPECT_EQ(chosen({.devices = "64"}),
            "--devices 64 is 64 stages: the model has 16 layers, and each stage needs one: use at "
            "most 16");
  EXPECT_EQ(chosen({.devices = "96", .replicas = 2, .tensor = 2}),
            "--devices 96 is 24 stages: the model has 16 layers, and each stage needs one: use at "
            "most 64");
  EXPECT_EQ(chosen({.devices = "64", .pipeline = 2}),
            "--devices 64 with 2 stages is TP 32: a degree is a power of two that divides the "
            "model's 8 KV heads: use 8");
  EXPECT_EQ(chosen({.stages = "10,5"}),
            "--stages 10,5: these are 15 layers, the model has 16: give as many");
  EXPECT_EQ(chosen({.stages = "16,0"}),
            "--stages 16,0: give the number of layers of each stage, such as 10,9,7,6");
  EXPECT_EQ(chosen({.stages = "2147483647,2147483647,18"}).find("--stages 2147483647"), 0U);
  EXPECT_EQ(chosen({.stages = "10,6,"}).find("--stages 10,6,: give the number"), 0U);
  EXPECT_EQ(chosen({.pipeline = 3, .stages = "10,6"}),
            "--stages 10,6 are 2 stages, --pipeline-parallel-size is 3: remove one of them");
  EXPECT_EQ(chosen({.devices = "0"}), "--devices 0: use 1 to 1024");
  EXPECT_NE(chosen({.devices = "nowhere.toml"}).find("nowhere.toml"), std::string::npos);
}

TEST(DeviceGroup, MoreDevicesThanCpusIsAWarning) {
  const auto group = choose_group({.tensor = 4}, {}, spec_with(8), machine_of(2));
  ASSERT_TRUE(group.ok()) << group.error().message;
  EXPECT_EQ(group->warnings,
            std::vector<std::string>{"4 devices compute with 4 threads where 2 may run at once: "
                                     "they wait for each other"});
}

class DeviceFile : public testing::Test {
 protected:
  ~DeviceFile() override { std::filesystem::remove(path_); }
  GroupOptions with(const std::string& text) const {
    std::ofstream(path_) << text;
    return {.devices = path_};
  }
  std::string refusal(const std::string& text) const {
    const std::string message = chosen(with(text));
    const std::size_t at = message.find(path_);
    return at == message.npos ? message : message.substr(at + path_.size());
  }

  const std::string path_ =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + ".toml";
};

TEST_F(DeviceFile, DescribesDevices) {
  const auto group = choose_group(with("[[device]]\ncpus = \"0-2\"\nmemory = \"12MiB\"\n"
                                       "[[device]]\ncpus = \"4\"\nthreads = 2\n"),
                                  {}, spec_with(8), machine_of(8));
  ASSERT_TRUE(group.ok()) << group.error().message;
  ASSERT_EQ(group->devices.size(), 2U);
  EXPECT_EQ(group->devices[0].cpus.where.cpus, (std::vector{0, 1, 2}));
  EXPECT_EQ(group->devices[0].memory_bytes, 12 << 20);
  EXPECT_EQ(group->devices[1].cpus.threads, 2);
  EXPECT_FALSE(group->devices[1].memory_bytes);
  EXPECT_EQ(group->division.tensor, 2);
}

TEST_F(DeviceFile, SaysWhatIsWrongInIt) {
  EXPECT_EQ(refusal("[[device]]\ncpus = \"0-2\"\n[[device]]\ncpus = \"2-3\"\n"),
            ": CPU 2 belongs to two devices: give each its own");
  EXPECT_EQ(refusal("[[device]]\nmemory = \"1GiB\"\n"),
            ": device 0: cpus must be a list of CPUs such as \"0-7,16\"");
  EXPECT_EQ(refusal("[[device]]\ncpus = \"0\"\nthreads = 0\n"),
            ": device 0: threads must be at least 1");
  EXPECT_EQ(refusal("[[device]]\ncpus = \"0\"\nmemory = \"2GiB\"\n"),
            ": its devices take 2.00 GiB, and 1.00 GiB are free: give less");
  EXPECT_EQ(refusal("[[device]]\ncpus = 3\n"),
            ": device 0: cpus must be a list of CPUs such as \"0-7,16\"");
  EXPECT_EQ(refusal("[[device]]\ncpus = \"0\"\nmemory = 3\n"),
            ": device 0: memory must be a size such as \"12GiB\"");
  EXPECT_EQ(refusal("[[device]]\ncpus = \"0\"\ncolour = 3\n"),
            ": device 0: \"colour\" is unknown: a device has cpus, memory and threads");
  EXPECT_EQ(refusal("[[device]]\ncpus = \"99\"\n"),
            ": device 0: --cpus 99: this process may use 0-7 only: name some of these");
  EXPECT_NE(refusal("device = 3\n").find("begin each device with a line [[device]]"),
            std::string::npos);
  EXPECT_NE(refusal("[[device\n").find("line 1"), std::string::npos);
}

}  // namespace
}  // namespace protean
