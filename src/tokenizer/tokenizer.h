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
  bool add_special = true;    // adds BOS/EOS if the tokenizer's files ask for them
  bool parse_special = true;  // "<|im_end|>" in the text becomes that special token
  // With parse_special, a special token is found only if all of it lies within one of these ranges,
  // which ascend and do not overlap. Without a value it is found anywhere. Added tokens that are
  // not special are always found anywhere, since they are ordinary text.
  std::optional<std::span<const TextRange>> special_in = std::nullopt;
};

// Text without special tokens.
inline constexpr EncodeOptions kPlainText{.add_special = false, .parse_special = false};

// Converts text to token ids and back. Immutable after construction: any thread may use it.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::vector<TokenId> encode(std::string_view text,
                                      const EncodeOptions& options) const = 0;

  // Returns the bytes of a token, which need not be whole UTF-8. The start of a SentencePiece word
  // includes its space. Special tokens have none; token_text() returns their name.
  virtual std::string_view bytes(TokenId id) const = 0;
  virtual std::string_view token_text(TokenId id) const = 0;

  virtual int vocab_size() const = 0;
  virtual TokenId bos() const = 0;  // -1 if none
  virtual TokenId eos() const = 0;
  virtual TokenId find_special(std::string_view text) const = 0;  // -1 if none
  // True if decoding removes the space that SentencePiece puts before the first word.
  virtual bool strips_leading_space() const = 0;
  virtual std::string description() const = 0;  // "byte-level BPE (llama3), 128256 tokens"

  // Returns true if both were made from the same vocabulary and rules, so that they give every text
  // the same tokens and every token the same text.
  virtual bool equals(const Tokenizer& other) const { return this == &other; }
};

// Returns the text of ids from a text's start. Bytes that are not UTF-8 become U+FFFD.
std::string decode(const Tokenizer& tokenizer, std::span<const TokenId> ids);

// Decodes a stream token by token into whole UTF-8 characters: an unfinished character waits for
// its last byte, a broken one becomes U+FFFD. If at_text_start, all results of push() and finish()
// together equal decode() of all ids.
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

// The vocabulary of GGUF metadata or of tokenizer files, independent of the format.
struct Vocabulary {
  enum class Kind { kByteLevelBpe, kSentencePiece, kUnigram };
  // SentencePiece's numbers, as in GGUF's tokenizer.ggml.token_type.
  enum class Type {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };

  Kind kind = Kind::kByteLevelBpe;
  std::vector<std::string> tokens;  // for byte-level BPE in GPT-2's printable alphabet
  std::vector<float> scores;        // for SentencePiece and Unigram
  std::vector<Type> types;
  std::vector<std::string> merges;  // "left right", in rank order
  std::string pre_tokenizer;        // GGUF's tokenizer.ggml.pre: "gpt-2", "llama-bpe", "qwen2", ...
  TokenId bos = -1;
  TokenId eos = -1;
  TokenId unknown = -1;
  bool add_bos = false;
  bool add_eos = false;
  // For SentencePiece and Unigram.
  bool add_space_prefix = true;
  bool squeeze_spaces = false;  // runs of spaces become one, and those at both ends none
  std::string charsmap;  // precompiled_charsmap, which is applied to a text first (charsmap.h)
};

Result<std::unique_ptr<Tokenizer>> make_tokenizer(Vocabulary vocabulary);

// Loads the tokenizer of a model directory: tokenizer.json, else tokenizer.model, else vocab.json
// with merges.txt (or Llama 3's encoder.json with vocab.bpe). Also reads tokenizer_config.json,
// special_tokens_map.json and added_tokens.json if present. `path` may be one of these files.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& path);

}  // namespace protean
