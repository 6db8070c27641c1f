#include "tokenizer/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <utility>

#include "tokenizer/utf8.h"

namespace protean {
namespace {

// Returns the character that ends at `at`; its code point is -1 if there is none or it is broken.
Utf8Step character_before(std::string_view text, std::size_t at) {
  for (std::size_t length = 1; length <= 4 && length <= at; ++length) {
    const Utf8Step step = utf8_step(text.substr(at - length, length));
    if (step.kind == Utf8Step::Kind::kCharacter && step.bytes == static_cast<int>(length)) {
      return step;
    }
  }
  return {};
}

Utf8Step character_at(std::string_view text, std::size_t at) {
  return at < text.size() ? utf8_step(text.substr(at)) : Utf8Step{};
}

bool is_word(std::int32_t c) {
  return c >= 0 && (c == '_' || u_isalnum(c));
}
bool is_space(std::int32_t c) {
  return c >= 0 && u_isUWhiteSpace(c);
}

bool lies_within(std::span<const TextRange> ranges, std::size_t begin, std::size_t end) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), begin,
                       [](std::size_t at, const TextRange& range) { return at < range.begin; });
  return after != ranges.begin() && end <= std::prev(after)->end;
}

}  // namespace

void TokenMatcher::add(AddedToken token) {
  int node = 0;
  for (const char c : token.content) {
    const auto byte = static_cast<unsigned char>(c);
    if (const PairTable::Entry* child = children_.find(node, byte)) {
      node = child->result;
    } else {
      const int fresh = static_cast<int>(token_at_node_.size());
      children_.insert(node, byte, 0, fresh);
      token_at_node_.push_back(-1);
      node = fresh;
    }
  }
  starts_[static_cast<unsigned char>(token.content[0])] = true;
  token_at_node_[node] = static_cast<int>(tokens_.size());
  tokens_.push_back(std::move(token));
}

std::optional<TokenMatcher::Match> TokenMatcher::find(std::string_view text, std::size_t from,
                                                      const Ranges& special_in) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      continue;
    }
    if (std::optional<Match> match = longest_at(text, at, special_in)) {
      Match found = with_stripped_space(text, from, *match);
      found.id = tokens_[found.id].id;
      return found;
    }
  }
  return std::nullopt;
}

// Returns a match whose id is the index into tokens_.
std::optional<TokenMatcher::Match> TokenMatcher::longest_at(std::string_view text, std::size_t at,
                                                            const Ranges& special_in) const {
  std::optional<Match> best;
  int node = 0;
  for (std::size_t end = at; end < text.size();) {
    const PairTable::Entry* child = children_.find(node, static_cast<unsigned char>(text[end]));
    if (child == nullptr) {
      break;
    }
    node = child->result;
    ++end;
    const int index = token_at_node_[node];
    if (index < 0) {
      continue;
    }
    const bool inside_word =
        tokens_[index].single_word && (is_word(character_before(text, at).code_point) ||
                                       is_word(character_at(text, end).code_point));
    const bool allowed =
        !tokens_[index].special || !special_in || lies_within(*special_in, at, end);
    if (!inside_word && allowed) {
      best = Match{at, end, index};
    }
  }
  return best;
}

TokenMatcher::Match TokenMatcher::with_stripped_space(std::string_view text, std::size_t from,
                                                      Match match) const {
  const AddedToken& token = tokens_[match.id];
  while (token.lstrip && match.begin > from) {
    const Utf8Step step = character_before(text, match.begin);
    if (!is_space(step.code_point) || match.begin - from < static_cast<std::size_t>(step.bytes)) {
      break;
    }
    match.begin -= step.bytes;
  }
  while (token.rstrip) {
    const Utf8Step step = character_at(text, match.end);
    if (!is_space(step.code_point)) {
      break;
    }
    match.end += step.bytes;
  }
  return match;
}

}  // namespace protean
