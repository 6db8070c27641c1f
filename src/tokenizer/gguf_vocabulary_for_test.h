#pragma once

// For tests only: reads the vocabulary of a well-formed GGUF file. The real reader is in a module
// that tokenizer must not include.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace protean {

class GgufVocabularyForTest {
 public:
  explicit GgufVocabularyForTest(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    at_ = 4 + 4 + 8;  // magic, version, number of tensors
    for (auto left = take<std::uint64_t>(); left > 0; --left) {
      const std::string key = take_string();
      read_value(key, take<std::uint32_t>());
    }
  }

  Vocabulary vocabulary;

 private:
  template <class T>
  T take() {
    if (at_ + sizeof(T) > bytes_.size()) {
      throw std::out_of_range("the test's GGUF file is truncated");
    }
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string take_string() {
    const auto length = take<std::uint64_t>();
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }

  void read_value(const std::string& key, std::uint32_t type) {
    constexpr std::size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 9) {
      const auto inner = take<std::uint32_t>();
      for (auto left = take<std::uint64_t>(); left > 0; --left) {
        read_value(key, inner);
      }
      return;
    }
    const std::string raw = type == 8 ? take_string() : bytes_.substr(at_, kSizes[type]);
    at_ += type == 8 ? 0 : kSizes[type];
    store(key, raw);
  }

  template <class T>
  static T as(const std::string& raw) {
    T value{};
    std::memcpy(&value, raw.data(), std::min(sizeof(T), raw.size()));
    return value;
  }

  void store(const std::string& key, const std::string& raw) {
    Vocabulary& v = vocabulary;
    if (key == "tokenizer.ggml.model") {
      v.kind = raw == "llama" ? Vocabulary::Kind::kSentencePiece : Vocabulary::Kind::kByteLevelBpe;
    } else if (key == "tokenizer.ggml.pre") {
      v.pre_tokenizer = raw;
    } else if (key == "tokenizer.ggml.tokens") {
      v.tokens.push_back(raw);
    } else if (key == "tokenizer.ggml.scores") {
      v.scores.push_back(as<float>(raw));
    } else if (key == "tokenizer.ggml.token_type") {
      v.types.push_back(static_cast<Vocabulary::Type>(as<std::int32_t>(raw)));
    } else if (key == "tokenizer.ggml.merges") {
      v.merges.push_back(raw);
    } else if (key == "tokenizer.ggml.bos_token_id") {
      v.bos = as<std::int32_t>(raw);
    } else if (key == "tokenizer.ggml.eos_token_id") {
      v.eos = as<std::int32_t>(raw);
    } else if (key == "tokenizer.ggml.unknown_token_id") {
      v.unknown = as<std::int32_t>(raw);
    } else if (key == "tokenizer.ggml.add_bos_token") {
      v.add_bos = as<bool>(raw);
    }
  }

  std::string bytes_;
  std::size_t at_ = 0;
};

}  // namespace protean
