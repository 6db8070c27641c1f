#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace protean {

struct HttpCall;

// The keys that a port accepts. Keeps SHA-256 digests, not the keys. Comparing a wrong key takes
// the same time wherever it differs.
class ApiKeys {
 public:
  ApiKeys() = default;  // no keys: every call is admitted
  explicit ApiKeys(std::span<const std::string> keys);

  bool empty() const { return digests_.empty(); }
  // Accepts a key in "Authorization: Bearer KEY" or, as Anthropic's clients send it,
  // "x-api-key: KEY".
  bool admit(const HttpCall& call) const;

 private:
  bool contains(std::string_view key) const;

  std::vector<std::array<unsigned char, 32>> digests_;
};

// Returns the given keys and those of the file at `path`, if `path` is not empty. The file has one
// key per line; empty lines and lines that begin with # are ignored. Errors never quote a key.
Result<std::vector<std::string>> collect_keys(std::vector<std::string> keys,
                                              const std::string& path);

}  // namespace protean
