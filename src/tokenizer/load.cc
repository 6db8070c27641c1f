#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "base/small_file.h"
#include "tokenizer/companions.h"
#include "tokenizer/hf_json.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tiktoken.h"
#include "tokenizer/tokenizer.h"

namespace protean {
namespace {

namespace fs = std::filesystem;
using Loaded = Result<std::unique_ptr<Tokenizer>>;

struct FilePair {
  const char* vocabulary;
  const char* merges;
};
constexpr std::array<FilePair, 2> kPairs = {
    {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}}};

Error about(const fs::path& path, const Error& error) {
  return Error{error.code, path.string() + ": " + error.message};
}

Loaded load_json(const fs::path& path, const Companions& companions) {
  const Result<std::string> text = read_small_file(path);
  return text ? parse_tokenizer_json(*text, path.string(), companions) : Loaded(text.error());
}

Loaded load_model(const fs::path& path, const Companions& companions) {
  const Result<std::string> bytes = read_small_file(path);
  if (!bytes) {
    return bytes.error();
  }
  if (looks_like_tiktoken(*bytes)) {
    Loaded tokenizer = read_llama3_tiktoken(*bytes);
    return tokenizer ? std::move(tokenizer) : Loaded(about(path, tokenizer.error()));
  }
  Result<Vocabulary> vocabulary = read_sentencepiece_model(*bytes);
  if (!vocabulary) {
    return about(path, vocabulary.error());
  }
  if (const Status applied = apply_companions(companions, *vocabulary); !applied) {
    return about(path, applied.error());
  }
  Loaded tokenizer = make_tokenizer(*std::move(vocabulary));
  return tokenizer ? std::move(tokenizer) : Loaded(about(path, tokenizer.error()));
}

// These files do not say how text is cut. The tokenizer's class decides, or else the size of the
// vocabulary, which differs between the published ones.
Result<std::string> pre_tokenizer_of(const Companions& companions, std::size_t tokens) {
  constexpr std::pair<const char*, const char*> kClasses[] = {
      {"Qwen2Tokenizer", "qwen2"}, {"GPT2Tokenizer", "gpt-2"}, {"CodeGenTokenizer", "gpt-2"}};
  struct Size {
    std::size_t from, to;
    const char* name;
  };
  constexpr Size kSizes[] = {
      {50256, 50400, "gpt-2"}, {128000, 128256, "llama-bpe"}, {151643, 152064, "qwen2"}};
  for (const auto& [name, pre] : kClasses) {
    if (companions.tokenizer_class == name) {
      return std::string(pre);
    }
  }
  for (const Size& size : kSizes) {
    if (tokens >= size.from && tokens <= size.to) {
      return std::string(size.name);
    }
  }
  return make_error(ErrorCode::kUnsupported,
                    "cannot tell how text is cut into words ({} tokens, tokenizer_class '{}'); "
                    "supply a tokenizer.json",
                    tokens, companions.tokenizer_class);
}

std::vector<std::string> read_merge_lines(std::string_view text) {
  std::vector<std::string> merges;
  // Only the first line may be a comment: "#" is a token like any other.
  if (text.starts_with("#version")) {
    text.remove_prefix(std::min(text.find('\n'), text.size()));
  }
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (!line.empty()) {
      merges.emplace_back(line);
    }
  }
  return merges;
}

Loaded load_pair(const fs::path& directory, const FilePair& names, const Companions& companions) {
  const fs::path path = directory / names.vocabulary;
  const Result<std::string> text = read_small_file(path);
  if (!text) {
    return text.error();
  }
  const Result<std::string> merges = read_small_file(directory / names.merges);
  if (!merges) {
    return merges.error();
  }
  Complaint complaint(path.string());
  const Result<boost::json::value> root = parse_json_object(*text);
  if (!root) {
    return about(path, root.error());
  }
  Vocabulary vocabulary;
  vocabulary.tokens = read_token_ids(Fields::of(*root, "vocabulary", complaint));
  if (complaint.any()) {
    return complaint.error();
  }
  Result<std::string> pre = pre_tokenizer_of(companions, vocabulary.tokens.size());
  if (!pre) {
    return about(path, pre.error());
  }
  vocabulary.pre_tokenizer = std::move(*pre);
  vocabulary.types.assign(vocabulary.tokens.size(), Vocabulary::Type::kNormal);
  vocabulary.merges = read_merge_lines(*merges);
  if (const Status applied = apply_companions(companions, vocabulary); !applied) {
    return about(path, applied.error());
  }
  Loaded tokenizer = make_tokenizer(std::move(vocabulary));
  return tokenizer ? std::move(tokenizer) : Loaded(about(path, tokenizer.error()));
}

Loaded load_directory(const fs::path& directory, const Companions& companions) {
  std::error_code ignored;
  if (fs::exists(directory / "tokenizer.json", ignored)) {
    return load_json(directory / "tokenizer.json", companions);
  }
  if (fs::exists(directory / "tokenizer.model", ignored)) {
    return load_model(directory / "tokenizer.model", companions);
  }
  for (const FilePair& names : kPairs) {
    if (fs::exists(directory / names.vocabulary, ignored)) {
      return load_pair(directory, names, companions);
    }
  }
  return make_error(ErrorCode::kNotFound,
                    "{}: no tokenizer.json, tokenizer.model or vocab.json with merges.txt",
                    directory.string());
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const fs::path& path) {
  std::error_code problem;
  const bool is_directory = fs::is_directory(path, problem);
  if (!fs::exists(path, problem)) {
    return make_error(ErrorCode::kNotFound, "{}: no such file or directory", path.string());
  }
  const fs::path directory = is_directory ? path : path.parent_path();
  const Result<Companions> companions = read_companions(directory);
  if (!companions) {
    return companions.error();
  }
  if (is_directory) {
    return load_directory(directory, *companions);
  }
  const std::string name = path.filename().string();
  for (const FilePair& names : kPairs) {
    if (name == names.vocabulary || name == names.merges) {
      return load_pair(directory, names, *companions);
    }
  }
  for (const char* companion :
       {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    if (name == companion) {
      return load_directory(directory, *companions);
    }
  }
  return path.extension() == ".model" ? load_model(path, *companions)
                                      : load_json(path, *companions);
}

}  // namespace protean
