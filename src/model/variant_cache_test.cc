#include "model/variant_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "model/variant_scene_for_test.h"

namespace protean {
namespace {

// Several models in one cache, each of which takes `model_bytes`.
class VariantCacheTest : public VariantStoreTest {
 protected:
  static constexpr std::size_t kFiles = 5;  // two halves of two layers, and the embeddings

  std::unique_ptr<VariantStore> open_model(const std::string& name, double models_kept = 100) {
    const fs::path folder = models_.path() / name;
    fs::create_directories(folder);
    write_model(folder, name);
    auto store =
        VariantStore::open({checkpoint_, folder}, {},
                           {.directory = cache_.path(),
                            .precisions = {Precision::kW8},
                            .most_bytes = static_cast<std::int64_t>(models_kept * model_bytes())});
    EXPECT_TRUE(store.ok());
    return *std::move(store);
  }
  // Packs a model and sets its time of use some minutes back.
  fs::path leave(const std::string& name, int minutes_ago) {
    const auto store = open_model(name);
    EXPECT_TRUE(store->pack_missing().ok());
    const fs::path folder = store->model_directory();
    fs::last_write_time(folder / "in-use",
                        fs::file_time_type::clock::now() - std::chrono::minutes(minutes_ago));
    return folder;
  }
  static std::size_t packed_in(const fs::path& folder) {
    std::size_t count = 0;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator(folder, gone)) {
      const std::string file = entry.path().filename();
      count += file.starts_with("layer-") || file.starts_with("embeddings.") ? 1 : 0;
    }
    return count;
  }
  static double model_bytes() {
    double bytes =
        static_cast<double>(VariantHeader::kBytes +
                            component_size(small_spec(), Component::kEmbeddings, Precision::kW8));
    for (const Component half : kLayerHalves) {
      bytes += static_cast<double>(
          small_spec().layers *
          (VariantHeader::kBytes + component_size(small_spec(), half, Precision::kW8)));
    }
    return bytes;
  }
  TemporaryDirectory models_;
};

TEST_F(VariantCacheTest, TheLongestUnusedModelsMakeRoomForANewOne) {
  const fs::path oldest = leave("oldest", 30);
  const fs::path recent = leave("recent", 10);
  const fs::path older = leave("older", 20);
  const auto store = open_model("new", 2.5);
  EXPECT_EQ(packed_in(oldest), kFiles) << "nothing is removed before it must";
  ASSERT_TRUE(store->pack_missing().ok());
  EXPECT_FALSE(fs::exists(oldest));
  EXPECT_FALSE(fs::exists(older));
  EXPECT_EQ(packed_in(recent), kFiles);
  EXPECT_EQ(packed_in(store->model_directory()), kFiles);
  // The time of use decides, not the time of packing.
  open_model("recent");
  const fs::path other = leave("other", 5);
  ASSERT_TRUE(open_model("third", 3)->pack_missing().ok());
  EXPECT_FALSE(fs::exists(other));
  EXPECT_EQ(packed_in(recent), kFiles);
}

TEST_F(VariantCacheTest, WhatAProcessUsesStaysWhateverItTakes) {
  const auto here = open_model("here");
  ASSERT_TRUE(here->pack_missing().ok());
  int ready[2];
  int end[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(end), 0);
  const pid_t child = in_child([&] {
    const auto store = open_model("there");
    char byte = 0;
    return store->pack_missing().ok() && ::write(ready[1], "r", 1) == 1 &&
           ::read(end[0], &byte, 1) == 1;
  });
  ::close(ready[1]);  // otherwise the parent would wait for ever for a child that died
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const fs::path unused = leave("unused", 1);
  const auto store = open_model("new", 0);
  ASSERT_TRUE(store->pack_missing().ok());
  EXPECT_FALSE(fs::exists(unused));
  EXPECT_EQ(packed_in(here->model_directory()), kFiles);
  EXPECT_EQ(packed_in(open_model("there")->model_directory()), kFiles);
  ASSERT_EQ(::write(end[1], "e", 1), 1);
  EXPECT_TRUE(succeeded(child));
  ASSERT_TRUE(open_model("new two", 0)->pack_missing().ok());
  EXPECT_EQ(packed_in(open_model("there")->model_directory()), 0U) << "no process uses it";
}

TEST_F(VariantCacheTest, OnlyWhatIsKnownIsRemoved) {
  const fs::path folder = leave("one", 5);
  std::ofstream(folder / "order.json") << "minutes of work";
  const fs::path foreign = cache_.path() / "photographs";
  fs::create_directories(foreign);
  std::ofstream(foreign / "layer-001.jpg") << "of a cake";
  const TemporaryDirectory elsewhere;
  std::ofstream(elsewhere.path() / "layer-000.mlp.w4") << std::string(1000, 'x');
  fs::create_directory_symlink(elsewhere.path(), cache_.path() / std::string(32, 'a'));
  const CacheTrim trim = trim_cache(cache_.path(), 0);
  EXPECT_EQ(trim.models, 1);
  EXPECT_EQ(static_cast<double>(trim.removed_bytes), model_bytes());
  EXPECT_EQ(trim.kept_bytes, 0);
  EXPECT_EQ(packed_in(folder), 0U);
  EXPECT_TRUE(fs::exists(folder / "order.json"));
  EXPECT_TRUE(fs::exists(foreign / "layer-001.jpg"));
  EXPECT_EQ(packed_in(elsewhere.path()), 1U);
}

// Opens and trims concurrently. A folder that a process holds is not removed.
TEST_F(VariantCacheTest, AFolderThatIsHeldIsThere) {
  std::atomic<bool> over{false};
  std::thread remover([&] {
    while (!over) {
      trim_cache(cache_.path(), 0);
    }
  });
  const std::string name(32, '0');
  for (int i = 0; i < 2000 && !HasFailure(); ++i) {
    const auto folder = CacheFolder::open(cache_.path(), name);
    EXPECT_TRUE(folder.ok()) << folder.error().message;
    std::ofstream(folder->path() / "layer-000") << "x";
    EXPECT_EQ(packed_in(folder->path()), 1U) << i;
  }
  over = true;
  remover.join();
}

}  // namespace
}  // namespace protean
