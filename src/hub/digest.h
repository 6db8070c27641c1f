#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace protean::hub {

// Computes the digest by which the hub names a file, from its bytes in order.
class Digest {
 public:
  // `like` is the expected digest: 64 digits are SHA-256; 40 are git's SHA-1 of a blob, which also
  // covers the size of the file.
  Digest(const std::string& like, std::int64_t size);
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void add(std::span<const char> bytes);
  std::string hex();  // once, at the end

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace protean::hub
