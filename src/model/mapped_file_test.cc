#include "model/mapped_file.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/test_data.h"
#include "model/checkpoint.h"
#include "model/weights.h"
#include "tests/checkpoints/checkpoints.h"

namespace protean {
namespace {

// Reading a page that was cut off a mapped file would end the process.
TEST(MappedFile, CheckpointsThatWereWrittenAreNotReadAgain) {
  const ModelSpec spec = architecture_specs().front().spec;
  const TemporaryDirectory directory;
  write_hf_checkpoint(directory.path(), spec, {.type = SafetensorsType::kF32});
  const std::filesystem::path gguf = directory.path() / "model.gguf";
  write_gguf_checkpoint(gguf, spec);
  const ComponentVariant mlp{0, Component::kMlp, Precision::kBf16};
  std::vector<std::byte> memory(
      static_cast<std::size_t>(component_size(spec, Component::kMlp, Precision::kBf16)) + 64);
  void* start = memory.data();
  std::size_t space = memory.size();
  auto* aligned = static_cast<std::byte*>(std::align(64, space - 64, start, space));
  for (const std::filesystem::path& file : {directory.path() / "model.safetensors", gguf}) {
    const auto opened = open_checkpoint(file == gguf ? gguf : directory.path());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    ASSERT_TRUE(load_component(**opened, mlp, aligned).ok());

    std::filesystem::copy_file(file, directory.path() / "other");
    std::filesystem::rename(directory.path() / "other", file);
    EXPECT_TRUE(load_component(**opened, mlp, aligned).ok()) << "another file of that name";

    const auto again = open_checkpoint(file == gguf ? gguf : directory.path());
    ASSERT_TRUE(again.ok()) << again.error().message;
    std::filesystem::resize_file(file, 100);
    const Status loaded = load_component(**again, mlp, aligned);
    ASSERT_FALSE(loaded.ok());
    EXPECT_NE(loaded.error().message.find(file.string() + " was written"), std::string::npos)
        << loaded.error().message;
  }
}

}  // namespace
}  // namespace protean
