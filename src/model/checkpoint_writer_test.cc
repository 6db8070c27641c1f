#include "model/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "device/cpu/bf16.h"
#include "model/random_checkpoint.h"
#include "model/safetensors_writer.h"
#include "tests/checkpoints/checkpoints.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

ModelSpec tiny_spec() {
  return {.architecture = "qwen2",
          .layers = 3,
          .hidden = 40,
          .ffn = 72,
          .vocab = 50,
          .max_context = 64,
          .attention = {.heads = 5, .kv_heads = 1, .head_dim = 8, .qkv_bias = true}};
}

std::vector<float> read(const Checkpoint& checkpoint, const NeededTensor& need) {
  const std::int64_t rows = need.columns == 0 ? 1 : need.rows;
  std::vector<float> values(
      static_cast<std::size_t>(need.rows * std::max<std::int64_t>(need.columns, 1)));
  checkpoint.read_rows(need.role, need.layer, 0, rows, values.data());
  return values;
}

void round_to_bf16(std::vector<float>& values) {
  for (float& value : values) {
    value = cpu::float_from(cpu::bf16_from(value));
  }
}

TEST(RandomCheckpoint, WeightsAreNormalAndOfTheRightSize) {
  cpu::Team team(2);
  ModelSpec spec = tiny_spec();
  spec.ffn = 4096;
  spec.hidden = 512;
  spec.attention = {.heads = 8, .kv_heads = 8, .head_dim = 64};
  const RandomCheckpoint checkpoint(team, spec, 1);
  const std::vector<float> gate = read(checkpoint, {TensorRole::kGate, 1, spec.ffn, spec.hidden});
  double sum = 0.0;
  double squares = 0.0;
  double fourths = 0.0;
  for (const float weight : gate) {
    sum += weight;
    squares += std::pow(double{weight}, 2);
    fourths += std::pow(double{weight}, 4);
  }
  const auto count = static_cast<double>(gate.size());
  const double variance = squares / count;
  EXPECT_NEAR(sum / count, 0.0, 5.0 * std::sqrt(variance / count));
  EXPECT_NEAR(variance * 512, 1.0, 0.01);
  EXPECT_NEAR(fourths / count / (variance * variance), 2.7, 0.02);  // 1.8 if uniform, 3 if normal
}

TEST(RandomCheckpoint, AWeightDependsOnItsPlaceAndTheSeedOnly) {
  cpu::Team one(1);
  cpu::Team two(2);
  const ModelSpec spec = tiny_spec();
  const RandomCheckpoint checkpoint(one, spec, 7);
  const RandomCheckpoint same(two, spec, 7);
  const RandomCheckpoint other(one, spec, 8);
  std::vector<float> previous;
  for (const NeededTensor& need : needed_tensors(spec)) {
    const std::vector<float> all = read(checkpoint, need);
    EXPECT_EQ(all, read(same, need));
    EXPECT_NE(all, read(other, need));
    EXPECT_NE(all, previous);
    previous = all;
    if (need.columns != 0) {
      std::vector<float> row(static_cast<std::size_t>(need.columns));
      same.read_rows(need.role, need.layer, need.rows - 1, 1, row.data());
      EXPECT_TRUE(std::equal(row.begin(), row.end(), all.end() - need.columns));
    }
  }
}

TEST(CheckpointWriter, GgufFilesHoldTheModel) {
  cpu::Team team(1);
  ModelSpec spec = tiny_spec();
  spec.norm_eps = 1e-6F;
  const RandomCheckpoint written(team, spec, 3);
  const auto rows = architectures();
  const ArchitectureRow& row = *std::find_if(
      rows.begin(), rows.end(), [](const ArchitectureRow& row) { return row.name == "qwen2"; });
  GgufMetadata metadata;
  metadata.add("general.architecture", "qwen2");
  const std::pair<const char*, std::uint32_t> numbers[] = {
      {"block_count", 3},          {"context_length", 64},      {"embedding_length", 40},
      {"feed_forward_length", 72}, {"attention.head_count", 5}, {"attention.head_count_kv", 1}};
  for (const auto& [key, number] : numbers) {
    metadata.add(std::string("qwen2.") + key, number);
  }
  metadata.add("qwen2.attention.layer_norm_rms_epsilon", 1e-6F);
  metadata.add("some.flag", true);
  metadata.add("some.texts", std::vector<std::string>{"a", "", "bc"});
  metadata.add("some.numbers", std::vector<std::int32_t>{-1, 2});
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "model.gguf";
  std::int64_t last_done = 0;
  std::int64_t last_total = 1;
  const Status status = write_gguf(written, row.gguf_tensors->names, metadata, path,
                                   [&](std::int64_t done, std::int64_t total) {
                                     last_done = done;
                                     last_total = total;
                                   });
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(last_done, last_total);
  const auto opened = open_checkpoint(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  for (const NeededTensor& need : needed_tensors(spec)) {
    std::vector<float> want = read(written, need);
    if (need.columns != 0) {
      round_to_bf16(want);
    }
    EXPECT_EQ(read(**opened, need), want);
  }
}

TEST(CheckpointWriter, SafetensorsHoldTheModel) {
  cpu::Team team(1);
  ModelSpec spec = tiny_spec();
  const TemporaryDirectory directory;
  write_hf_checkpoint(directory.path(), spec);  // for its config.json
  fs::remove(directory.path() / "model.safetensors");
  const RandomCheckpoint written(team, spec, 4);
  const Status status =
      write_safetensors(written, architectures().front().hf_tensors->names,
                        directory.path() / "model.safetensors", [](std::int64_t, std::int64_t) {});
  ASSERT_TRUE(status.ok()) << status.error().message;
  const auto opened = open_checkpoint(directory.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  for (const NeededTensor& need : needed_tensors(spec)) {
    std::vector<float> want = read(written, need);
    round_to_bf16(want);
    EXPECT_EQ(read(**opened, need), want);
  }
}

TEST(OutputFile, NothingIsOverwrittenAndErrorsNameTheFile) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "file";
  std::ofstream(path) << "kept";
  const auto again = OutputFile::create(path);
  ASSERT_FALSE(again.ok());
  EXPECT_NE(again.error().message.find(path.string()), std::string::npos);
  EXPECT_FALSE(OutputFile::create(directory.path() / "none" / "file").ok());
  auto full = OutputFile::create(directory.path() / "new");
  ASSERT_TRUE(full.ok());
  const std::string text = "abc";
  EXPECT_TRUE(full->write(std::as_bytes(std::span(text))).ok());
  EXPECT_TRUE(full->finish().ok());
  EXPECT_EQ(fs::file_size(directory.path() / "new"), 3U);
}

}  // namespace
}  // namespace protean
