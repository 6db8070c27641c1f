#include "hub/repo_listing.h"

#include <gtest/gtest.h>

namespace protean::hub {
namespace {

std::string listing_with(std::string_view siblings) {
  return R"({"id":"a/b","sha":")" + std::string(40, '1') + R"(","siblings":[)" +
         std::string(siblings) + "]}";
}

TEST(RepoListing, AFileHasASizeAndTheDigestOfItsContents) {
  const std::string sha1(40, 'a');
  const std::string sha256(64, 'b');
  const auto listing = parse_repo_listing(
      listing_with(R"({"rfilename":"config.json","size":5,"blobId":")" + sha1 +
                   R"("},{"rfilename":"d/m.safetensors","size":9,"blobId":")" + sha1 +
                   R"(","lfs":{"sha256":")" + sha256 + R"(","size":9,"pointerSize":134}},)" +
                   R"({"rfilename":"x","lfs":null},{"rfilename":"y","blobId":"../z","size":-3})"));
  ASSERT_TRUE(listing.ok()) << listing.error().message;
  EXPECT_EQ(listing->commit, std::string(40, '1'));
  ASSERT_EQ(listing->files.size(), 4U);
  EXPECT_EQ(listing->files[0].digest, sha1);
  EXPECT_EQ(listing->files[0].size, 5);
  EXPECT_EQ(listing->files[1].digest, sha256);
  EXPECT_EQ(listing->files[1].size, 9);
  for (const std::size_t unstated : {2, 3}) {
    EXPECT_EQ(listing->files[unstated].digest, "");
    EXPECT_EQ(listing->files[unstated].size, -1);
  }
}

TEST(RepoListing, PathsThatLeadOutOfAFolderAreRefused) {
  for (const char* path : {"", "/a", "..", "a/..", "a/../b", "./a", "a//b", "a/", "a\\b", "a\nb"}) {
    EXPECT_FALSE(is_safe_path(path)) << path;
  }
  EXPECT_FALSE(is_safe_path(std::string_view("a\0b", 3)));
  EXPECT_FALSE(is_safe_path(std::string(256, 'a')));
  EXPECT_TRUE(is_safe_path("a/...b/.c d"));
  EXPECT_FALSE(parse_repo_listing(listing_with(R"({"rfilename":"../x"})")).ok());
  EXPECT_FALSE(parse_repo_listing(listing_with(R"({"rfilename":"x"},{"rfilename":"x"})")).ok());
}

TEST(RepoListing, OtherTextsAreRefused) {
  for (const char* text : {"", "[]", "{}", R"({"siblings":[]})", R"({"sha":"main","siblings":[]})",
                           R"({"siblings":{}})"}) {
    EXPECT_FALSE(parse_repo_listing(text).ok()) << text;
  }
  EXPECT_FALSE(parse_repo_listing(listing_with("7")).ok());
}

}  // namespace
}  // namespace protean::hub
