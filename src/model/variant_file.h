#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>

#include "base/result.h"
#include "model/weights.h"

namespace protean {

// Identifies weights independent of their path: a hash of the model's files and of the packing.
struct ModelIdentity {
  std::array<std::byte, 16> bytes{};

  std::string hex() const;
  friend bool operator==(const ModelIdentity&, const ModelIdentity&) = default;
};

// Identifies the model in a Hugging Face directory or .gguf file. Hashes names, sizes and times of
// the weight files, the contents of small files and the beginning of large ones, because reading a
// large model at each start would take minutes. Changing weights in place changes the time. A copy
// with new times is packed again, which costs time and is never wrong.
Result<ModelIdentity> identify_model(const std::filesystem::path& model, const ModelSpec& spec);

// The header of a file of packed weights. On disk it takes 4 KiB, little-endian, so that the
// weights after it begin on a page. The last 8 bytes are the XXH3 of all bytes before.
struct VariantHeader {
  static constexpr std::int64_t kBytes = 4096;

  ModelIdentity model;
  ComponentVariant which;
  std::int64_t body_bytes = 0;
  std::uint64_t body_checksum = 0;  // the low half of a 128-bit XXH3

  std::array<std::byte, kBytes> encode() const;
  // Fails with kCorrupt on bytes that encode() of this version did not write.
  static Result<VariantHeader> parse(std::span<const std::byte> bytes);
};

// Writes a file atomically: it exists whole or not at all, even if several processes write it.
// Returns once the file is on disk. Fails with kUnavailable if `pace` says stop.
Status write_whole(const std::filesystem::path& path,
                   std::initializer_list<std::span<const std::byte>> pieces, const Pace& pace = {});

// Writes a component of a model with its header, atomically, chunk by chunk with `pace` between.
Status write_variant(const std::filesystem::path& path, const ModelIdentity& model,
                     const ComponentVariant& which, std::span<const std::byte> body,
                     const Pace& pace = {});

// Reads the weights into `body`, chunk by chunk with `pace` between, and verifies their checksum.
// Fails with kNotFound if there is no file, with kCorrupt if it is not exactly this variant of this
// model or shrinks while it is read, and with kUnavailable if `pace` says stop.
Status read_variant(const std::filesystem::path& path, const ModelIdentity& model,
                    const ComponentVariant& which, std::span<std::byte> body, const Pace& pace);

// Reads a file so that it is in the page cache when it is needed. Returns false if `pace` says
// stop. Does not report a file that is missing or cannot be read.
bool read_through(const std::filesystem::path& path, const Pace& pace);

// Checks only the header and the length of a file; otherwise like read_variant().
Status check_variant(const std::filesystem::path& path, const ModelIdentity& model,
                     const ComponentVariant& which, std::int64_t body_bytes);

// Removes unfinished files that dead writers left in a folder.
void remove_unfinished(const std::filesystem::path& folder);

}  // namespace protean
