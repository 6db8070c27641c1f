// Tests that a store whose packed weights could not be written keeps them once they can be.

#include <gtest/gtest.h>

#include "base/log.h"
#include "model/variant_scene_for_test.h"

namespace protean {
namespace {

class VariantKeepingTest : public VariantStoreTest {
 protected:
  VariantKeepingTest() { log::set_level(log::Level::kOff); }

  // Reads a component and returns true if disk had it.
  bool is_on_disk(VariantStore& store) {
    const std::int64_t packed = store.packed_on_demand();
    expect_right(store, {0, Component::kMlp, Precision::kW4});
    return store.packed_on_demand() == packed;
  }
};

TEST_F(VariantKeepingTest, WhatCouldNotBeWrittenIsWrittenWhenItIsToTryAgain) {
  const auto store = open();
  const fs::path folder = store->model_directory();
  fs::remove_all(folder);
  std::ofstream(folder) << "in the way";
  EXPECT_FALSE(is_on_disk(*store));
  store->keep_again();
  EXPECT_FALSE(is_on_disk(*store));
  fs::remove(folder);
  EXPECT_FALSE(is_on_disk(*store));
  EXPECT_FALSE(is_on_disk(*store)) << "it does not try by itself";
  store->keep_again();
  EXPECT_FALSE(is_on_disk(*store));
  EXPECT_TRUE(is_on_disk(*store));
}

TEST_F(VariantKeepingTest, AFolderThatCouldNotBeMadeIsMadeWhenItIsToTryAgain) {
  const fs::path file = cache_.path() / "file";
  std::ofstream(file) << "in the way";
  const auto store =
      VariantStore::open({checkpoint_, model_.path()}, {}, {.directory = file / "below"});
  ASSERT_TRUE(store.ok()) << store.error().message;
  EXPECT_FALSE(is_on_disk(**store));
  fs::remove(file);
  (*store)->keep_again();
  EXPECT_FALSE((*store)->model_directory().empty());
  EXPECT_FALSE(is_on_disk(**store));
  EXPECT_TRUE(is_on_disk(**store));
  EXPECT_TRUE((*store)->pack_missing().ok());
}

}  // namespace
}  // namespace protean
