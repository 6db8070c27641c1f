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
    EXPECT_TRUE((*opened)->current().ok());

    std::filesystem::copy_file(file, directory.path() / "other");
    std::filesystem::rename(directory.path() / "other", file);
    EXPECT_TRUE(load_component(**opened, mlp, aligned).ok()) << "another file of that name";
    EXPECT_EQ((*opened)->current().error().message.find(file.string() + " was written or replaced"),
              0U);

    const auto again = open_checkpoint(file == gguf ? gguf : directory.path());
    ASSERT_TRUE(again.ok()) << again.error().message;
    std::filesystem::resize_file(file, 100);
    const Status loaded = load_component(**again, mlp, aligned);
    ASSERT_FALSE(loaded.ok());
    EXPECT_NE(loaded.error().message.find(file.string() + " was written"), std::string::npos)
        << loaded.error().message;
  }
}

// The hub's cache has links to files, and a directory may be a link itself.
TEST(MappedFile, FilesAreCurrentAsLongAsTheirPathLeadsToThem) {
  namespace fs = std::filesystem;
  const ModelSpec spec = architecture_specs().front().spec;
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "model";
  for (const char* const name : {"one", "other"}) {
    fs::create_directory(directory.path() / name);
    write_hf_checkpoint(directory.path() / name, spec, {.type = SafetensorsType::kF32});
  }
  fs::create_directory_symlink("one", path);
  const auto opened = open_checkpoint(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_TRUE((*opened)->current().ok());
  fs::remove(path);
  EXPECT_EQ((*opened)->current().error().code, ErrorCode::kNotFound);
  fs::create_directory_symlink("other", path);
  EXPECT_EQ((*opened)->current().error().code, ErrorCode::kCorrupt) << "the bytes are the same";
  EXPECT_TRUE((*opened)->unchanged().ok());
  fs::remove(path);
  fs::create_directory_symlink("one", path);
  EXPECT_TRUE((*opened)->current().ok());
}

}  // namespace
}  // namespace protean
