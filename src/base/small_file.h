#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"
#include "base/units.h"

namespace protean {

// The largest file that belongs to a model and is no weights: tokenizers have some 30 MiB.
inline constexpr std::int64_t kLargestSmallFile = 256 * kMiB;

// Reads a whole file. Fails with kNotFound if it cannot be opened, and with kInvalidArgument if it
// is larger or no regular file, of which reading might wait or never end.
Result<std::string> read_small_file(const std::filesystem::path& path,
                                    std::int64_t most_bytes = kLargestSmallFile);

}  // namespace protean
