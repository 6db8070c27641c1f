#include "model/llama2c.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <fstream>

namespace protean {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kLlama2cMagic = 0x616B3432;  // begins files of versions 1 and 2
constexpr std::int64_t kMostOfAnything = 1 << 24;

// Seven numbers at the start of the file, or behind magic and version.
struct Header {
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t vocab = 0;  // negative in old files with an LM head of its own
  std::int64_t context = 0;
};

bool is_plausible(const Header& header) {
  for (const std::int64_t value : {header.hidden, header.ffn, header.layers, header.heads,
                                   header.kv_heads, std::abs(header.vocab), header.context}) {
    if (value < 1 || value > kMostOfAnything) {
      return false;
    }
  }
  return header.hidden % header.heads == 0 && header.heads % header.kv_heads == 0;
}

// Bytes of an old file, which has nothing but floats behind its header.
double old_file_bytes(const Header& header) {
  const auto hidden = static_cast<double>(header.hidden);
  const auto layers = static_cast<double>(header.layers);
  const double head = hidden / static_cast<double>(header.heads);
  const double kv = head * static_cast<double>(header.kv_heads);
  const double layer = hidden * (2 + 2 * hidden + 2 * kv + 3 * static_cast<double>(header.ffn));
  const double table = static_cast<double>(std::abs(header.vocab)) * hidden;
  const double floats = table * (header.vocab < 0 ? 2 : 1) + layers * layer + hidden +
                        static_cast<double>(header.context) * head;
  return 28 + 4 * floats;
}

}  // namespace

std::optional<std::string> describe_llama2c(const fs::path& path) {
  static_assert(std::endian::native == std::endian::little);
  std::array<std::int32_t, 9> words{};
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(words.data()), sizeof(words))) {
    return std::nullopt;
  }
  const bool has_magic = static_cast<std::uint32_t>(words[0]) == kLlama2cMagic;
  const std::size_t at = has_magic ? 2 : 0;
  const Header header{words[at],     words[at + 1], words[at + 2], words[at + 3],
                      words[at + 4], words[at + 5], words[at + 6]};
  std::error_code unknown;
  const auto bytes = static_cast<double>(fs::file_size(path, unknown));
  if (!is_plausible(header) || unknown || (!has_magic && bytes != old_file_bytes(header))) {
    return std::nullopt;
  }
  return fmt::format(
      "llama2.c checkpoint ({} layers, hidden {}, {} heads, vocabulary {}, context {} tokens)",
      header.layers, header.hidden, header.heads, std::abs(header.vocab), header.context);
}

}  // namespace protean
