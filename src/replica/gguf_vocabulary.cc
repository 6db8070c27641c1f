#include "replica/gguf_vocabulary.h"

#include <limits>
#include <utility>

namespace protean {
namespace {

// Reads keys one after another and keeps the first error.
class MetadataReader {
 public:
  explicit MetadataReader(const GgufFile& file) : file_(file) {}

  std::string string(const char* key) { return take(file_.find_string(key)).value_or(""); }

  bool boolean(const char* key, bool otherwise) {
    return take(file_.find_bool(key)).value_or(otherwise);
  }

  // Returns a token id; `otherwise` if the file has none.
  TokenId token(const char* key, std::size_t vocab, TokenId otherwise = -1) {
    const auto id = take(file_.find_integer(key));
    if (!error_ && id && (*id < 0 || *id >= static_cast<std::int64_t>(vocab))) {
      error_ = make_error(ErrorCode::kCorrupt,
                          "{}: {} is {}, outside the vocabulary of {} tokens: the file is damaged",
                          file_.name(), key, *id, vocab);
    }
    return id ? static_cast<TokenId>(*id) : otherwise;
  }

  template <class T>
  T take(Result<T> result) {
    if (!result.ok()) {
      error_ = error_ ? error_ : result.error();
      return T{};
    }
    return *std::move(result);
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  const GgufFile& file_;
  std::optional<Error> error_;
};

}  // namespace

Result<Vocabulary> gguf_vocabulary(const GgufFile& file) {
  MetadataReader reader(file);
  Vocabulary vocabulary;
  const std::string model = reader.string("tokenizer.ggml.model");
  if (model == "gpt2") {
    vocabulary.kind = Vocabulary::Kind::kByteLevelBpe;
  } else if (model == "llama") {
    vocabulary.kind = Vocabulary::Kind::kSentencePiece;
  } else if (model == "t5") {
    vocabulary.kind = Vocabulary::Kind::kUnigram;
  } else if (!reader.error()) {
    return make_error(
        ErrorCode::kUnsupported,
        "{}: tokenizer.ggml.model is '{}', not llama, gpt2 or t5: use a file with one of "
        "these tokenizers",
        file.name(), model);
  }
  vocabulary.tokens = reader.take(file.strings("tokenizer.ggml.tokens"));
  vocabulary.scores = reader.take(file.floats("tokenizer.ggml.scores"));
  vocabulary.merges = reader.take(file.strings("tokenizer.ggml.merges"));
  for (const std::int64_t type : reader.take(file.integers("tokenizer.ggml.token_type"))) {
    if (type < 1 || type > 6) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: tokenizer.ggml.token_type holds {}, not 1 to 6: the file is damaged",
                        file.name(), type);
    }
    vocabulary.types.push_back(static_cast<Vocabulary::Type>(type));
  }
  const bool sentencepiece = vocabulary.kind == Vocabulary::Kind::kSentencePiece;
  const std::size_t size = vocabulary.tokens.size();
  vocabulary.pre_tokenizer = reader.string("tokenizer.ggml.pre");
  vocabulary.bos = reader.token("tokenizer.ggml.bos_token_id", size);
  // Files without a key were made for readers that know T5's tokens, and that add EOS to its texts
  // and BOS to those of the others below.
  const bool t5 = vocabulary.kind == Vocabulary::Kind::kUnigram;
  vocabulary.eos = reader.token("tokenizer.ggml.eos_token_id", size, t5 ? 1 : -1);
  vocabulary.unknown = reader.token("tokenizer.ggml.unknown_token_id", size, t5 ? 2 : -1);
  const bool usually_bos = sentencepiece || vocabulary.pre_tokenizer == "llama-bpe" ||
                           vocabulary.pre_tokenizer == "tekken";
  vocabulary.add_bos = reader.boolean("tokenizer.ggml.add_bos_token", usually_bos);
  vocabulary.add_eos = reader.boolean("tokenizer.ggml.add_eos_token", t5);
  vocabulary.add_space_prefix = reader.boolean("tokenizer.ggml.add_space_prefix", true);
  vocabulary.squeeze_spaces = reader.boolean("tokenizer.ggml.remove_extra_whitespaces", false);
  for (const std::int64_t byte :
       reader.take(file.integers("tokenizer.ggml.precompiled_charsmap"))) {
    vocabulary.charsmap += static_cast<char>(byte);
  }
  if (reader.error()) {
    return *reader.error();
  }
  return vocabulary;
}

Result<ChatFiles> gguf_chat_files(const GgufFile& file, const Tokenizer& tokenizer) {
  MetadataReader reader(file);
  ChatFiles chat;
  chat.template_source = reader.string("tokenizer.chat_template");
  if (reader.error()) {
    return *reader.error();
  }
  chat.bos_token = tokenizer.bos() >= 0 ? tokenizer.token_text(tokenizer.bos()) : "";
  chat.eos_token = tokenizer.eos() >= 0 ? tokenizer.token_text(tokenizer.eos()) : "";
  return chat;
}

Result<InfillTokens> gguf_infill_tokens(const GgufFile& file, const Tokenizer& tokenizer) {
  MetadataReader reader(file);
  const auto vocab = static_cast<std::size_t>(tokenizer.vocab_size());
  const auto read = [&](const char* key) { return reader.token(key, vocab); };
  // Older files have the second name.
  const auto either = [&](const char* key, const char* old) {
    return reader.token(key, vocab, read(old));
  };
  const InfillTokens named{
      .prefix = either("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"),
      .suffix = either("tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"),
      .middle = either("tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"),
      .repository = read("tokenizer.ggml.fim_rep_token_id"),
      .file = read("tokenizer.ggml.fim_sep_token_id"),
      .pad = read("tokenizer.ggml.fim_pad_token_id")};
  if (reader.error()) {
    return *reader.error();
  }
  return named.complete() ? named : find_infill_tokens(tokenizer);
}

}  // namespace protean
