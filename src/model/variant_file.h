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

// Which weights, whatever they are called: a hash of the model's files and of how they are packed.
struct ModelIdentity {
  std::array<std::byte, 16> bytes{};

  std::string hex() const;
  friend bool operator==(const ModelIdentity&, const ModelIdentity&) = default;
};

// Of a Hugging Face directory or .gguf file. Names, sizes and times of the weight files, the
// contents of small ones and the beginning of large ones: reading all of a large model at each
// start would take minutes, and who changes weights in place changes their time. A copy with new
// times is packed once more, which costs time and is never wrong.
Result<ModelIdentity> identify_model(const std::filesystem::path& model, const ModelSpec& spec);

// What a file of packed weights says of itself. On disk 4 KiB, little-endian, so that the weights
// behind it begin on a page; the last 8 bytes are the XXH3 of all before them.
struct VariantHeader {
  static constexpr std::int64_t kBytes = 4096;

  ModelIdentity model;
  ComponentVariant which;
  std::int64_t body_bytes = 0;
  std::uint64_t body_checksum = 0;  // the low half of a 128-bit XXH3

  std::array<std::byte, kBytes> encode() const;
  // Fails with kCorrupt on anything that encode() of this version did not write.
  static Result<VariantHeader> parse(std::span<const std::byte> bytes);
};

// Writes a file that is there whole or not at all, whoever else writes it at the same time. When it
// returns, the file is on disk.
Status write_whole(const std::filesystem::path& path,
                   std::initializer_list<std::span<const std::byte>> pieces);

// The same with one component of a model behind its header.
Status write_variant(const std::filesystem::path& path, const ModelIdentity& model,
                     const ComponentVariant& which, std::span<const std::byte> body);

// Reads into the caller's memory, a chunk at a time with `pace` between, and verifies what arrived;
// a file that shrinks meanwhile is an error like any other. kNotFound where there is none,
// kCorrupt where it is not this variant of this model whole, kUnavailable when told to stop.
Status read_variant(const std::filesystem::path& path, const ModelIdentity& model,
                    const ComponentVariant& which, std::span<std::byte> body, const Pace& pace);

// Reads a file through, paced, so that it is in the system's memory when it is wanted. False when
// told to stop; what is not there or cannot be read is whoever wants it to say.
bool read_through(const std::filesystem::path& path, const Pace& pace);

// Like read_variant, but looks only at the header and the file's length.
Status check_variant(const std::filesystem::path& path, const ModelIdentity& model,
                     const ComponentVariant& which, std::int64_t body_bytes);

// Removes what writers that died left unfinished in a folder.
void remove_unfinished(const std::filesystem::path& folder);

}  // namespace protean
