#include "tokenizer/tiktoken.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/base64.h"
#include "tokenizer/bpe_rules.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/known_pre_tokenizers.h"
#include "tokenizer/pipeline.h"

namespace protean {
namespace {

constexpr std::size_t kLlama3Ranks = 128000;
constexpr std::size_t kLlama3Special = 256;

// The names of Llama 3.1 and later. The first Llama 3 has other reserved names in these places.
std::vector<std::string> llama3_special_tokens() {
  std::vector<std::string> names = {"<|begin_of_text|>",
                                    "<|end_of_text|>",
                                    "<|reserved_special_token_0|>",
                                    "<|reserved_special_token_1|>",
                                    "<|finetune_right_pad_id|>",
                                    "<|reserved_special_token_2|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|eom_id|>",
                                    "<|eot_id|>",
                                    "<|python_tag|>"};
  for (int i = 3; names.size() < kLlama3Special; ++i) {
    names.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  }
  return names;
}

Result<std::vector<std::string>> read_ranks(std::string_view text) {
  std::vector<std::string> tokens;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (line.empty()) {
      continue;
    }
    const std::size_t space = std::min(line.find(' '), line.size());
    std::optional<std::string> bytes = from_base64(line.substr(0, space));
    const std::string_view rank = line.substr(std::min(space + 1, line.size()));
    std::size_t number = 0;
    const auto parsed = std::from_chars(rank.data(), rank.data() + rank.size(), number);
    if (!bytes || bytes->empty() || parsed.ec != std::errc() ||
        parsed.ptr != rank.data() + rank.size() || number != tokens.size()) {
      return make_error(ErrorCode::kCorrupt, "line {} is not a base64 token and the rank {}",
                        tokens.size() + 1, tokens.size());
    }
    tokens.push_back(std::move(*bytes));
  }
  if (tokens.size() != kLlama3Ranks) {
    return make_error(ErrorCode::kUnsupported,
                      "{} tiktoken ranks: only Llama 3's {} are known; use a tokenizer.json",
                      tokens.size(), kLlama3Ranks);
  }
  return tokens;
}

}  // namespace

bool looks_like_tiktoken(std::string_view bytes) {
  const std::string_view first = bytes.substr(0, bytes.substr(0, 4096).find(' '));
  return !first.empty() && first.size() < std::min<std::size_t>(bytes.size(), 4096) &&
         first.find_first_not_of(kBase64Alphabet) >= first.find_last_not_of('=') + 1;
}

Result<std::unique_ptr<Tokenizer>> read_llama3_tiktoken(std::string_view bytes) {
  Result<std::vector<std::string>> tokens = read_ranks(bytes);
  if (!tokens) {
    return tokens.error();
  }
  Result<KnownPreTokenizer> known = known_pre_tokenizer("llama-bpe");
  if (!known) {
    return known.error();
  }
  Pipeline pipeline;
  pipeline.description = "byte-level BPE (llama-bpe, tiktoken)";
  pipeline.pre_tokenizer = std::move(known->pre_tokenizer);
  std::vector<RankedToken> ranked;
  for (std::string& token : *tokens) {
    const auto id = static_cast<TokenId>(pipeline.tokens.size());
    if (token.size() == 1) {
      pipeline.model.byte_tokens[static_cast<unsigned char>(token[0])] = id;
    }
    pipeline.model.whole_pieces.emplace(token, id);
    ranked.push_back({token, id, static_cast<std::uint32_t>(id)});
    pipeline.tokens.push_back({to_byte_alphabet(token), token});
  }
  pipeline.model.vocabulary_size = static_cast<std::int32_t>(tokens->size() + kLlama3Special);
  if (const Status added = add_ranked_merges(ranked, pipeline.model); !added) {
    return added.error();
  }
  for (std::string& name : llama3_special_tokens()) {
    const auto id = static_cast<TokenId>(pipeline.tokens.size());
    pipeline.tokens.push_back({name, ""});
    pipeline.added.push_back({.content = std::move(name), .id = id, .special = true});
  }
  pipeline.bos = static_cast<TokenId>(kLlama3Ranks);
  pipeline.eos = pipeline.bos + 1;
  pipeline.prefix = {pipeline.bos};
  return make_pipeline_tokenizer(std::move(pipeline));
}

}  // namespace protean
