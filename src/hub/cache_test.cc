#include "hub/cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "hub/file_lock.h"

namespace protean::hub {
namespace {

namespace fs = std::filesystem;

class CacheTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(root_); }
  void add(const std::string& commit, const std::string& path, const std::string& digest) {
    ASSERT_TRUE(cache_.prepare("a/b-c").ok());
    std::ofstream(cache_.blob("a/b-c", digest)) << "12345";
    ASSERT_TRUE(cache_.link("a/b-c", commit, path, digest).ok());
  }
  fs::path root_ = fs::path(testing::TempDir()) / ("cache" + std::to_string(::getpid()));
  Cache cache_{root_};
  const std::string one_ = std::string(40, '1');
  const std::string two_ = std::string(40, '2');
};

TEST_F(CacheTest, LinksAreRelative) {
  add(one_, "config.json", "d1");
  add(one_, "sub/x.gguf", "d2");
  const fs::path snapshot = cache_.snapshot("a/b-c", one_);
  EXPECT_EQ(snapshot, root_ / "models--a--b-c" / "snapshots" / one_);
  EXPECT_EQ(fs::read_symlink(snapshot / "config.json"), "../../blobs/d1");
  EXPECT_EQ(fs::read_symlink(snapshot / "sub/x.gguf"), "../../../blobs/d2");
  add(one_, "config.json", "d2");  // replaced
  EXPECT_EQ(fs::read_symlink(snapshot / "config.json"), "../../blobs/d2");
}

TEST_F(CacheTest, ARevisionIsTheCommitThatWasFetchedLast) {
  add(one_, "config.json", "d1");
  const ModelName pull_request{.repo = "a/b-c", .file = {}, .revision = "refs/pr/1"};
  EXPECT_EQ(cache_.commit_of(pull_request), std::nullopt);
  ASSERT_TRUE(cache_.set_ref(pull_request, one_).ok());
  EXPECT_EQ(cache_.commit_of(pull_request), one_);
  ASSERT_TRUE(cache_.set_ref(pull_request, two_).ok());
  EXPECT_EQ(cache_.commit_of(pull_request), two_);
  EXPECT_EQ(cache_.commit_of({.repo = "a/b-c", .file = {}, .revision = one_}), one_);
  std::ofstream(root_ / "models--a--b-c/refs/main") << "../../etc";
  EXPECT_EQ(cache_.commit_of({.repo = "a/b-c", .file = {}, .revision = {}}), std::nullopt);
}

TEST_F(CacheTest, WhatAnotherSnapshotUsesIsKept) {
  add(one_, "config.json", "d1");
  add(one_, "old", "d2");
  add(two_, "config.json", "d1");
  ASSERT_TRUE(cache_.set_ref({.repo = "a/b-c", .file = {}, .revision = "v1"}, one_).ok());
  ASSERT_TRUE(cache_.set_ref({.repo = "a/b-c", .file = {}, .revision = {}}, two_).ok());
  EXPECT_EQ(cache_.find("a/b-c")->snapshots.size(), 2U);
  EXPECT_EQ(cache_.list().at(0).repo, "a/b-c");
  EXPECT_EQ(*cache_.remove({.repo = "a/b-c", .file = {}, .revision = "v1"}), 5);
  EXPECT_TRUE(fs::exists(cache_.blob("a/b-c", "d1")));
  EXPECT_FALSE(fs::exists(cache_.blob("a/b-c", "d2")));
  EXPECT_FALSE(fs::exists(root_ / "models--a--b-c/refs/v1"));
  EXPECT_EQ(*cache_.remove({.repo = "a/b-c", .file = {}, .revision = {}}), 5);
  EXPECT_FALSE(fs::exists(root_ / "models--a--b-c"));
  EXPECT_EQ(cache_.remove({.repo = "a/b-c", .file = {}, .revision = {}}).error().code,
            ErrorCode::kNotFound);
}

TEST_F(CacheTest, ALockIsHeldOnceAndSurvivesTheRemovalOfItsFile) {
  ASSERT_TRUE(cache_.prepare("a/b-c").ok());
  const fs::path path = cache_.lock("a/b-c", "d1");
  {
    const auto first = FileLock::try_lock(path);
    ASSERT_TRUE(first.ok() && first->has_value());
    EXPECT_FALSE(FileLock::try_lock(path)->has_value());
    EXPECT_EQ(cache_.remove({.repo = "a/b-c", .file = {}, .revision = {}}).error().code,
              ErrorCode::kUnavailable);
    fs::remove(path);  // as other tools do; a new file is another lock
    EXPECT_TRUE(FileLock::try_lock(path)->has_value());
  }
  EXPECT_TRUE(FileLock::try_lock(path)->has_value());
  EXPECT_FALSE(FileLock::try_lock(root_ / "none/x.lock").ok());
}

TEST(CacheNames, ASnapshotHasTheNameOfItsModel) {
  const std::string commit(40, 'a');
  EXPECT_EQ(name_of_snapshot("/c/models--a--b-c/snapshots/" + commit), "a/b-c");
  EXPECT_EQ(name_of_snapshot("/c/models--a--b-c/snapshots/" + commit + "/"), "a/b-c");
  EXPECT_EQ(name_of_snapshot("/c/models--a--b-c/snapshots/x"), std::nullopt);
  EXPECT_EQ(name_of_snapshot("/c/a/b"), std::nullopt);
  EXPECT_EQ(name_of_snapshot("/"), std::nullopt);
}

}  // namespace
}  // namespace protean::hub
