#pragma once

// Finds small trained models, traces and tokenizers for tests. They are not part of the repository:
// PROTEAN_DATA names their folder; by default it is ../shared/data, seen from the checkout.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace protean {

inline std::filesystem::path test_data(const std::string& relative) {
  const char* named = std::getenv("PROTEAN_DATA");
  const std::filesystem::path root = named != nullptr ? named : "../shared/data";
  return root / relative;
}

inline std::string read_test_data(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace protean

// Skips the gtest TEST that it stands in and names the missing file.
#define PROTEAN_REQUIRE_DATA(path)                                                      \
  if (!std::filesystem::exists(path)) {                                                 \
    GTEST_SKIP() << "needs " << (path) << "; set PROTEAN_DATA to the test data folder"; \
  }
