#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "hub/digest.h"
#include "hub/repo_listing.h"

namespace protean::hub {

// A blob while it is fetched: a file DIGEST.incomplete that grows at its end, so that a later
// process can go on where this one stopped. Its writer holds the blob's lock.
class BlobFile {
 public:
  // Opens or creates the file. Bytes that are there already count once read_back() has read them.
  static Result<BlobFile> open(const std::filesystem::path& path, const RepoFile& file);
  ~BlobFile();
  BlobFile(BlobFile&& other) noexcept;
  BlobFile& operator=(BlobFile&&) = delete;
  BlobFile(const BlobFile&) = delete;
  BlobFile& operator=(const BlobFile&) = delete;

  // Reads the next piece of what an earlier process left. Returns false at its end. Call it until
  // then before append().
  Result<bool> read_back();

  // Fails with kCorrupt if the file would get longer than it is to be.
  Status append(std::span<const char> bytes);
  Status restart();  // forgets all bytes

  std::int64_t size() const { return size_; }
  bool is_whole() const { return size_ == file_.size; }

  // Computes the digest of a whole file, once; restart() makes another one possible.
  std::string digest() { return digest_->hex(); }
  // Gives a whole file its final place.
  Status publish(const std::filesystem::path& place);

 private:
  BlobFile(int descriptor, std::filesystem::path path, RepoFile file);
  Error failed(std::string_view what) const;

  int descriptor_;
  std::filesystem::path path_;
  RepoFile file_;
  std::int64_t size_ = 0;  // bytes that the digest covers
  std::unique_ptr<Digest> digest_;
};

}  // namespace protean::hub
