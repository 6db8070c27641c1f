#include "tokenizer/bpe_rules.h"

#include <optional>
#include <string>

#include "tokenizer/utf8.h"

namespace protean {
namespace {

// Longer than any real token. Bounds the time for a hostile file, which is quadratic in this
// length.
constexpr std::size_t kLongestRanked = 4096;

// Returns the code point of a text that is one whole character, else -1.
std::int32_t single_character(std::string_view text) {
  if (text.empty()) {
    return -1;
  }
  const Utf8Step step = utf8_step(text);
  return static_cast<std::size_t>(step.bytes) == text.size() ? step.code_point : -1;
}

std::int32_t first_character(std::string_view text) {
  return text.empty() ? -1 : utf8_step(text).code_point;
}

std::int32_t last_character(std::string_view text) {
  std::size_t at = text.size();
  while (at > 0) {
    --at;
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) {
      return single_character(text.substr(at));
    }
  }
  return -1;
}

void add_joinable(std::string_view left, std::string_view right, BpeModel& model) {
  const std::int32_t last = last_character(left);
  const std::int32_t first = first_character(right);
  if (!model.byte_symbols && last >= 0 && first >= 0) {
    model.joinable.insert(last, first, 0, 0);
  }
}

// Returns the symbol of a part of a token. A character that is not a token gets a new symbol.
class Symbols {
 public:
  Symbols(std::span<const RankedToken> ranked, BpeModel& model) : model_(&model) {
    for (const RankedToken& token : ranked) {
      tokens_.emplace(token.text, token.id);
    }
    if (!model.byte_symbols) {
      add_characters(tokens_, model);
    }
  }

  std::optional<std::int32_t> find(std::string_view part) const {
    if (const auto token = tokens_.find(part); token != tokens_.end()) {
      return token->second;
    }
    const std::int32_t character = model_->byte_symbols ? -1 : single_character(part);
    if (character < 0) {
      return std::nullopt;
    }
    if (const PairTable::Entry* known = model_->characters.find(character, 0)) {
      return known->result;
    }
    return std::nullopt;
  }

  void add_orphan(std::string_view character) {
    const std::int32_t code_point = single_character(character);
    if (code_point >= 0 && model_->characters.find(code_point, 0) == nullptr) {
      const auto symbol =
          model_->vocabulary_size + static_cast<std::int32_t>(model_->orphans.size());
      model_->characters.insert(code_point, 0, 0, symbol);
      model_->orphans.emplace_back(character);
    }
  }

 private:
  TokenIndex tokens_;
  BpeModel* model_;
};

void add_splits_of(const RankedToken& token, const Symbols& symbols, BpeModel& model) {
  const std::string_view text = token.text;
  std::size_t at = 0;
  while (at < text.size()) {
    at += model.byte_symbols ? 1 : utf8_step(text.substr(at)).bytes;
    if (at == text.size()) {
      break;
    }
    const auto left = symbols.find(text.substr(0, at));
    const auto right = left ? symbols.find(text.substr(at)) : std::nullopt;
    if (right) {
      model.merges.insert(*left, *right, token.rank, token.id);
      add_joinable(text.substr(0, at), text.substr(at), model);
    }
  }
}

}  // namespace

void add_characters(const TokenIndex& tokens, BpeModel& model) {
  for (const auto& [text, id] : tokens) {
    const std::int32_t character = single_character(text);
    if (character >= 0) {
      model.characters.insert(character, 0, 0, id);
    }
  }
}

Status add_listed_merges(std::span<const std::pair<std::string_view, std::string_view>> merges,
                         const TokenIndex& tokens, BpeModel& model) {
  std::uint32_t rank = 0;
  std::string joined;
  for (const auto& [left, right] : merges) {
    joined.assign(left);
    joined += right;
    TokenId ids[3];
    const std::string_view texts[3] = {left, right, joined};
    for (int i = 0; i < 3; ++i) {
      const auto token = tokens.find(texts[i]);
      if (token == tokens.end()) {
        return make_error(ErrorCode::kCorrupt,
                          "merge {} joins '{}' and '{}', but '{}' is not in the vocabulary", rank,
                          left, right, texts[i]);
      }
      ids[i] = token->second;
    }
    model.merges.insert(ids[0], ids[1], rank++, ids[2]);
    add_joinable(left, right, model);
  }
  return {};
}

Status add_ranked_merges(std::span<const RankedToken> ranked, BpeModel& model) {
  Symbols symbols(ranked, model);
  for (const RankedToken& token : ranked) {
    if (token.text.size() > kLongestRanked) {
      return make_error(ErrorCode::kCorrupt, "token {} is {} bytes long (at most {})", token.id,
                        token.text.size(), kLongestRanked);
    }
    for (std::string_view rest = token.text; !model.byte_symbols && !rest.empty();) {
      const auto bytes = static_cast<std::size_t>(utf8_step(rest).bytes);
      symbols.add_orphan(rest.substr(0, bytes));
      rest.remove_prefix(bytes);
    }
  }
  for (const RankedToken& token : ranked) {
    add_splits_of(token, symbols, model);
  }
  return {};
}

}  // namespace protean
