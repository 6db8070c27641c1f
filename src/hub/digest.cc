#include "hub/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "base/check.h"

namespace protean::hub {

void Digest::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

Digest::Digest(const std::string& like, std::int64_t size) : context_(EVP_MD_CTX_new()) {
  const bool is_git = like.size() == 40;
  const EVP_MD* kind = is_git ? EVP_sha1() : EVP_sha256();
  check(EVP_DigestInit_ex(context_.get(), kind, nullptr) == 1, "OpenSSL has SHA-1 and SHA-256");
  if (is_git) {
    const std::string head = fmt::format("blob {}", size);
    add({head.c_str(), head.size() + 1});  // with the NUL
  }
}

Digest::~Digest() = default;

void Digest::add(std::span<const char> bytes) {
  EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
}

std::string Digest::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned size = 0;
  EVP_DigestFinal_ex(context_.get(), bytes.data(), &size);
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

}  // namespace protean::hub
