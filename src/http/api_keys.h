#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace protean {

struct HttpCall;

// The keys that open a port, as SHA-256 digests: the keys themselves are not kept. Whether a key
// is right takes the same time whichever is wrong where.
class ApiKeys {
 public:
  ApiKeys() = default;  // none: the port is open
  explicit ApiKeys(std::span<const std::string> keys);

  bool empty() const { return digests_.empty(); }
  // By "Authorization: Bearer KEY" or, as Anthropic's clients send it, "x-api-key: KEY".
  bool admit(const HttpCall& call) const;

 private:
  bool contains(std::string_view key) const;

  std::vector<std::array<unsigned char, 32>> digests_;
};

// The given keys and those of the file, one per line; empty lines and lines that begin with # are
// passed over. The path may be empty. An error never quotes a key.
Result<std::vector<std::string>> collect_keys(std::vector<std::string> keys,
                                              const std::string& path);

}  // namespace protean
