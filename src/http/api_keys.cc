#include "http/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "http/message.h"

namespace protean {
namespace {

std::array<unsigned char, 32> digest(std::string_view key) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), hash.data());
  return hash;
}

std::string_view bearer(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  const bool fits =
      authorization.size() > kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), authorization.begin(), [](char a, char b) {
        return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b - 'A' + 'a') : b);
      });
  return fits ? authorization.substr(kScheme.size()) : std::string_view();
}

bool can_be_sent(std::string_view key) {
  return !key.empty() &&
         std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

ApiKeys::ApiKeys(std::span<const std::string> keys) {
  for (const std::string& key : keys) {
    digests_.push_back(digest(key));
  }
}

bool ApiKeys::contains(std::string_view key) const {
  const auto given = digest(key);
  unsigned found = 0;
  for (const auto& known : digests_) {
    found |= CRYPTO_memcmp(given.data(), known.data(), given.size()) == 0 ? 1U : 0U;
  }
  return found != 0;
}

bool ApiKeys::admit(const HttpCall& call) const {
  return empty() || contains(bearer(call.authorization)) || contains(call.header("x-api-key"));
}

Result<std::vector<std::string>> collect_keys(std::vector<std::string> keys,
                                              const std::string& path) {
  for (const std::string& key : keys) {
    if (!can_be_sent(key)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "a key is empty or has characters other than visible ASCII, which no "
                        "client could send in a header");
    }
  }
  if (path.empty()) {
    return keys;
  }
  errno = 0;
  std::ifstream file(path);
  int number = 0;
  std::size_t found = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) {
      line.pop_back();
    }
    if (line.empty() || line.front() == '#') {
      continue;
    }
    if (!can_be_sent(line)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{} line {}: a key is one word of visible ASCII characters", path, number);
    }
    keys.push_back(std::move(line));
    ++found;
  }
  if (found == 0) {  // a server without keys would be open to all
    return make_error(ErrorCode::kInvalidArgument, "{} holds no key: {}", path,
                      errno != 0 ? std::strerror(errno) : "write one per line");
  }
  return keys;
}

}  // namespace protean
