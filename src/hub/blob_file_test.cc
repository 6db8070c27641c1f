#include "hub/blob_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <random>

#include "base/repetitions_for_test.h"

namespace protean::hub {
namespace {

namespace fs = std::filesystem;

class BlobFileTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove(path_); }

  static RepoFile described(const std::string& contents, const std::string& like) {
    const auto size = static_cast<std::int64_t>(contents.size());
    Digest digest(like, size);
    digest.add(contents);
    return {.path = "f", .size = size, .digest = digest.hex()};
  }
  BlobFile reopened(const RepoFile& file) {
    auto blob = BlobFile::open(path_, file);
    EXPECT_TRUE(blob.ok());
    while (*blob->read_back()) {
    }
    return *std::move(blob);
  }
  std::string on_disk() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  fs::path path_ = fs::path(testing::TempDir()) / ("blob" + std::to_string(::getpid()));
};

TEST_F(BlobFileTest, DigestsAreThoseOfGitAndOfSha256) {
  EXPECT_EQ(described("hello\n", std::string(40, 'a')).digest,
            "ce013625030ba8dba906f756967f9e9ca394464a");  // git hash-object
  EXPECT_EQ(described("", std::string(40, 'a')).digest, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(described("abc", std::string(64, 'a')).digest,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// Whatever the places at which writers stop, the file and its digest end the same.
TEST_F(BlobFileTest, GoesOnWhereverAWriterStopped) {
  std::mt19937 random(1);
  for (int round = 0; round < repetitions(20); ++round) {
    std::string contents(random() % 1'500'000, '\0');
    for (char& c : contents) {
      c = static_cast<char>(random());
    }
    const RepoFile file = described(contents, std::string(round % 2 == 0 ? 64 : 40, 'a'));
    while (true) {
      BlobFile blob = reopened(file);
      const auto begin = static_cast<std::size_t>(blob.size());
      ASSERT_EQ(on_disk(), contents.substr(0, begin));
      if (blob.is_whole()) {
        EXPECT_EQ(blob.digest(), file.digest);
        break;
      }
      std::size_t at = begin;
      for (std::size_t stop = begin + 1 + random() % (contents.size() - begin); at < stop;) {
        const std::size_t count = std::min<std::size_t>(1 + random() % 200'000, stop - at);
        ASSERT_TRUE(blob.append(std::string_view(contents).substr(at, count)).ok());
        at += count;
      }
    }
    fs::remove(path_);
  }
}

TEST_F(BlobFileTest, IsNeverLongerThanStated) {
  const RepoFile file = described("0123456789", std::string(64, 'a'));
  {
    BlobFile blob = reopened(file);
    EXPECT_TRUE(blob.append(std::string_view("01234")).ok());
    EXPECT_EQ(blob.append(std::string_view("567890")).error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(blob.size(), 5);
  }
  std::ofstream(path_) << "more than ten bytes";
  BlobFile blob = reopened(file);
  EXPECT_EQ(blob.size(), 0);
  EXPECT_TRUE(blob.append(std::string_view("0123456789")).ok());
  EXPECT_EQ(blob.digest(), file.digest);
  EXPECT_TRUE(blob.restart().ok());
  EXPECT_EQ(on_disk(), "");
}

}  // namespace
}  // namespace protean::hub
