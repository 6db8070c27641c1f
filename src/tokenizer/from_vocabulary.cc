#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/bpe_rules.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/known_pre_tokenizers.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unigram.h"

namespace protean {
namespace {

using Type = Vocabulary::Type;

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581, SentencePiece's space

// True if spaces are written as U+2581 and tokens have scores.
bool has_scores(const Vocabulary& vocabulary) {
  return vocabulary.kind != Vocabulary::Kind::kByteLevelBpe;
}

Status check_sizes(const Vocabulary& vocabulary) {
  const std::size_t size = vocabulary.tokens.size();
  if (size == 0 || size > static_cast<std::size_t>(kLargestVocabulary)) {
    return make_error(ErrorCode::kCorrupt, "a vocabulary of {} tokens (1 to {} are possible)", size,
                      kLargestVocabulary);
  }
  if (vocabulary.types.size() != size) {
    return make_error(ErrorCode::kCorrupt, "{} token types for {} tokens", vocabulary.types.size(),
                      size);
  }
  if (has_scores(vocabulary) && vocabulary.scores.size() != size) {
    return make_error(ErrorCode::kCorrupt, "{} token scores for {} tokens",
                      vocabulary.scores.size(), size);
  }
  const std::pair<const char*, TokenId> ids[] = {
      {"bos", vocabulary.bos}, {"eos", vocabulary.eos}, {"unknown", vocabulary.unknown}};
  for (const auto& [name, id] : ids) {
    if (id < -1 || id >= static_cast<TokenId>(size)) {
      return make_error(ErrorCode::kCorrupt, "the {} token is {}, but there are {} tokens", name,
                        id, size);
    }
  }
  if ((vocabulary.add_bos && vocabulary.bos < 0) || (vocabulary.add_eos && vocabulary.eos < 0)) {
    return make_error(ErrorCode::kCorrupt, "a {} token is to be added, but there is none",
                      vocabulary.add_bos && vocabulary.bos < 0 ? "bos" : "eos");
  }
  return {};
}

bool is_special(Type type) {
  return type == Type::kControl || type == Type::kUnknown;
}

// Returns the tokens that merging can produce, by their text. Fails with kCorrupt if two have the
// same.
Result<TokenIndex> index_tokens(const Vocabulary& vocabulary) {
  TokenIndex index;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& text = vocabulary.tokens[id];
    if (text.empty()) {
      continue;
    }
    const auto [known, fresh] = index.emplace(text, static_cast<TokenId>(id));
    if (!fresh) {
      return make_error(ErrorCode::kCorrupt, "tokens {} and {} are both '{}'", known->second, id,
                        text);
    }
  }
  return index;
}

void add_frame(const Vocabulary& vocabulary, Pipeline& pipeline) {
  pipeline.bos = vocabulary.bos;
  pipeline.eos = vocabulary.eos;
  if (vocabulary.add_bos) {
    pipeline.prefix.push_back(vocabulary.bos);
  }
  if (vocabulary.add_eos) {
    pipeline.suffix.push_back(vocabulary.eos);
  }
  pipeline.model.vocabulary_size = static_cast<std::int32_t>(vocabulary.tokens.size());
  pipeline.model.unknown = vocabulary.unknown;
}

// Byte-level ---------------------------------------------------------------------------------

Status add_merges(const Vocabulary& vocabulary, const TokenIndex& index, BpeModel& model) {
  std::vector<std::pair<std::string_view, std::string_view>> merges;
  merges.reserve(vocabulary.merges.size());
  for (const std::string_view merge : vocabulary.merges) {
    // The alphabet has no space, so a space is the separator.
    const std::size_t space = merge.find(' ');
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos) {
      return make_error(ErrorCode::kCorrupt,
                        "merge {} is '{}', not two tokens with a space between", merges.size(),
                        merge);
    }
    merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return add_listed_merges(merges, index, model);
}

Result<Pipeline> byte_level_pipeline(const Vocabulary& vocabulary, const TokenIndex& index) {
  Result<KnownPreTokenizer> known = known_pre_tokenizer(vocabulary.pre_tokenizer);
  if (!known) {
    return known.error();
  }
  Pipeline pipeline;
  pipeline.description = fmt::format("byte-level BPE ({})", vocabulary.pre_tokenizer);
  pipeline.pre_tokenizer = std::move(known->pre_tokenizer);
  pipeline.normalizer = std::move(known->normalizer);
  add_frame(vocabulary, pipeline);
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& text = vocabulary.tokens[id];
    const Type type = vocabulary.types[id];
    const bool added = is_special(type) || type == Type::kUserDefined;
    std::string bytes = added ? text : from_byte_alphabet(text).value_or(text);
    if (added && !text.empty()) {
      pipeline.added.push_back(
          {.content = text, .id = static_cast<TokenId>(id), .special = is_special(type)});
    }
    if (type == Type::kNormal && known->whole_pieces_first) {
      pipeline.model.whole_pieces.emplace(bytes, static_cast<TokenId>(id));
    }
    pipeline.tokens.push_back({text, is_special(type) ? std::string() : std::move(bytes)});
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto token = index.find(to_byte_alphabet(std::string_view(&c, 1)));
    pipeline.model.byte_tokens[byte] = token == index.end() ? -1 : token->second;
  }
  if (const Status added = add_merges(vocabulary, index, pipeline.model); !added) {
    return added.error();
  }
  return pipeline;
}

// SentencePiece ------------------------------------------------------------------------------

std::string with_spaces(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const bool space = text.starts_with(kMetaspace);
    out += space ? ' ' : text.front();
    text.remove_prefix(space ? kMetaspace.size() : 1);
  }
  return out;
}

Status add_sentencepiece_token(const Vocabulary& vocabulary, TokenId id, Pipeline& pipeline) {
  const std::string& text = vocabulary.tokens[id];
  std::string bytes;
  switch (vocabulary.types[id]) {
    case Type::kUnknown:
    case Type::kControl:
      if (!text.empty()) {
        pipeline.added.push_back({.content = text, .id = id, .special = true});
      }
      break;
    case Type::kUserDefined:
      if (!text.empty()) {
        pipeline.added.push_back({.content = text, .id = id, .normalized = true});
      }
      bytes = with_spaces(text);
      break;
    case Type::kByte: {
      const std::optional<int> byte = byte_of_token(text);
      if (!byte) {
        return make_error(ErrorCode::kCorrupt, "byte token {} is '{}', not like '<0x0A>'", id,
                          text);
      }
      pipeline.model.byte_tokens[*byte] = id;
      bytes.push_back(static_cast<char>(*byte));
      break;
    }
    case Type::kUnused:
      pipeline.model.unused.insert(id);
      bytes = with_spaces(text);
      break;
    case Type::kNormal:
      bytes = with_spaces(text);
      break;
    default:
      return make_error(ErrorCode::kCorrupt, "token {} has type {}, which does not exist", id,
                        static_cast<int>(vocabulary.types[id]));
  }
  pipeline.tokens.push_back({text, std::move(bytes)});
  return {};
}

Status check_scores(const Vocabulary& vocabulary) {
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!std::isfinite(vocabulary.scores[id])) {
      return make_error(ErrorCode::kCorrupt, "the score of token {} is not a number", id);
    }
  }
  return {};
}

// Turns scores into ranks: equal for equal scores, lower for higher ones.
std::vector<RankedToken> ranked_by_score(const Vocabulary& vocabulary) {
  std::vector<RankedToken> ranked;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const Type type = vocabulary.types[id];
    if ((type == Type::kNormal || type == Type::kUnused) && !vocabulary.tokens[id].empty()) {
      ranked.push_back({vocabulary.tokens[id], static_cast<TokenId>(id), 0});
    }
  }
  const auto score = [&](const RankedToken& token) { return vocabulary.scores[token.id]; };
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](const RankedToken& a, const RankedToken& b) { return score(a) > score(b); });
  for (std::size_t i = 1; i < ranked.size(); ++i) {
    const bool equal = score(ranked[i]) == score(ranked[i - 1]);
    ranked[i].rank = ranked[i - 1].rank + (equal ? 0 : 1);
  }
  return ranked;
}

// The library removes U+2581 like a space at a text's end, but not at its beginning.
void add_space_squeezing(Normalizer& normalizer) {
  const std::pair<const char*, const char*> rules[] = {{R"(\A +|[ \x{2581}]+\z)", ""},
                                                       {" {2,}", " "}};
  for (const auto& [pattern, to] : rules) {
    Result<Regex> regex = Regex::compile(pattern);
    normalizer.add(Normalizer::ReplaceMatches{std::move(regex.value()), to});
  }
}

UnigramModel unigram_of(const Vocabulary& vocabulary, const BpeModel& common) {
  UnigramModel model;
  model.unknown = common.unknown;
  model.bytes = common.byte_tokens;
  model.scores.assign(vocabulary.scores.begin(), vocabulary.scores.end());
  std::vector<PieceTrie::Piece> pieces;
  double lowest = 0.0;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] == Type::kNormal && !vocabulary.tokens[id].empty()) {
      pieces.push_back({vocabulary.tokens[id], static_cast<TokenId>(id)});
      lowest = pieces.size() == 1 ? model.scores[id] : std::min(lowest, model.scores[id]);
    }
  }
  // The sum is in float, as all sums of this program.
  model.unknown_score = static_cast<float>(unknown_piece_score(lowest));
  model.trie = PieceTrie::build(std::move(pieces));
  return model;
}

Result<Pipeline> sentencepiece_pipeline(const Vocabulary& vocabulary) {
  Pipeline pipeline;
  const bool unigram = vocabulary.kind == Vocabulary::Kind::kUnigram;
  pipeline.description = unigram ? "SentencePiece Unigram" : "SentencePiece BPE";
  pipeline.strips_leading_space = vocabulary.add_space_prefix;
  pipeline.model.byte_symbols = false;
  add_frame(vocabulary, pipeline);
  if (!vocabulary.charsmap.empty()) {
    Result<Charsmap> map = Charsmap::read(vocabulary.charsmap);
    if (!map) {
      return map.error();
    }
    pipeline.normalizer.add(Normalizer::Characters{std::move(*map), Normalizer::Match::kLongest});
  }
  if (vocabulary.squeeze_spaces) {
    add_space_squeezing(pipeline.normalizer);
  }
  if (vocabulary.add_space_prefix) {
    pipeline.normalizer.add(Normalizer::Prepend{std::string(kMetaspace)});
  }
  pipeline.normalizer.add(Normalizer::Replace{" ", std::string(kMetaspace)});
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const Status added = add_sentencepiece_token(vocabulary, static_cast<TokenId>(id), pipeline);
    if (!added) {
      return added.error();
    }
  }
  if (const Status finite = check_scores(vocabulary); !finite) {
    return finite.error();
  }
  if (unigram) {
    pipeline.unigram = unigram_of(vocabulary, pipeline.model);
  } else if (const Status added = add_ranked_merges(ranked_by_score(vocabulary), pipeline.model);
             !added) {
    return added.error();
  }
  return pipeline;
}

// Derives the types of byte and control tokens from their texts, for a vocabulary without types.
void fill_in_types(Vocabulary& vocabulary) {
  if (!vocabulary.types.empty()) {
    return;
  }
  vocabulary.types.assign(vocabulary.tokens.size(), Type::kNormal);
  if (has_scores(vocabulary)) {
    for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
      if (byte_of_token(vocabulary.tokens[id])) {
        vocabulary.types[id] = Type::kByte;
      }
    }
  }
  const auto set = [&](TokenId id, Type type) {
    if (id >= 0 && static_cast<std::size_t>(id) < vocabulary.types.size()) {
      vocabulary.types[id] = type;
    }
  };
  set(vocabulary.bos, Type::kControl);
  set(vocabulary.eos, Type::kControl);
  set(vocabulary.unknown, Type::kUnknown);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_tokenizer(Vocabulary vocabulary) {
  fill_in_types(vocabulary);
  if (const Status sizes = check_sizes(vocabulary); !sizes) {
    return sizes.error();
  }
  const Result<TokenIndex> index = index_tokens(vocabulary);
  if (!index) {
    return index.error();
  }
  Result<Pipeline> pipeline = has_scores(vocabulary) ? sentencepiece_pipeline(vocabulary)
                                                     : byte_level_pipeline(vocabulary, *index);
  if (!pipeline) {
    return pipeline.error();
  }
  return make_pipeline_tokenizer(std::move(*pipeline));
}

}  // namespace protean
