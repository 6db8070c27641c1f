#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/text_range.h"

namespace protean {

struct EncodeOptions {
  bool add_special = true;    // BOS/EOS where the tokenizer's files ask for them
  bool parse_special = true;  // "<|im_end|>" in the text becomes that special token
  // With parse_special: a special token is found only where all of it lies within one of these
  // ranges, which ascend and do not overlap. Without a value: anywhere. Added tokens that are not
  // special are pieces of text, and found everywhere.
  std::optional<std::span<const TextRange>> special_in = std::nullopt;
};

// Every character for itself, and nothing around the text.
inline constexpr EncodeOptions kPlainText{.add_special = false, .parse_special = false};

// Text <-> token ids. Immutable after construction: any thread may call anything.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::vector<TokenId> encode(std::string_view text,
                                      const EncodeOptions& options) const = 0;

  // The bytes a token stands for, which need not be whole UTF-8. A SentencePiece word start has its
  // space. Special tokens are empty; token_text() has their name.
  virtual std::string_view bytes(TokenId id) const = 0;
  virtual std::string_view token_text(TokenId id) const = 0;

  virtual int vocab_size() const = 0;
  virtual TokenId bos() const = 0;  // -1 if none
  virtual TokenId eos() const = 0;
  virtual TokenId find_special(std::string_view text) const = 0;  // -1 if none
  // SentencePiece puts a space before the first word; decoding a text's start takes it away again.
  virtual bool strips_leading_space() const = 0;
  virtual std::string description() const = 0;  // "byte-level BPE (llama3), 128256 tokens"
};

// The whole text of ids from a text's start. Bytes that are not UTF-8 become U+FFFD.
std::string decode(const Tokenizer& tokenizer, std::span<const TokenId> ids);

// Text token by token, in whole UTF-8 characters: an unfinished character waits for its last byte,
// a broken one becomes U+FFFD. One per stream. The concatenation of all push() and the finish()
// equals decode() of all ids when at_text_start.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool at_text_start);
  std::string push(TokenId id);
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool strip_space_;
  std::string pending_;
};

// What GGUF metadata or a directory of tokenizer files says, format-free.
struct Vocabulary {
  enum class Kind { kByteLevelBpe, kSentencePiece };
  // SentencePiece's own numbering, as in GGUF's tokenizer.ggml.token_type.
  enum class Type {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };

  Kind kind = Kind::kByteLevelBpe;
  std::vector<std::string> tokens;  // byte-level BPE: in GPT-2's printable alphabet
  std::vector<float> scores;        // SentencePiece
  std::vector<Type> types;
  std::vector<std::string> merges;  // "left right", in rank order
  std::string pre_tokenizer;        // GGUF's tokenizer.ggml.pre: "gpt-2", "llama-bpe", "qwen2", ...
  TokenId bos = -1;
  TokenId eos = -1;
  TokenId unknown = -1;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = true;  // SentencePiece
};

Result<std::unique_ptr<Tokenizer>> make_tokenizer(Vocabulary vocabulary);

// A model directory: tokenizer.json, else tokenizer.model, else vocab.json + merges.txt (also
// Llama 3's encoder.json + vocab.bpe), with tokenizer_config.json, special_tokens_map.json and
// added_tokens.json where they are. A path to one of those files works too.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& path);

}  // namespace protean
