#include <algorithm>
#include <boost/json/parse.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "grammar/grammar.h"
#include "tests/grammar/token_list.h"

namespace {

using protean::TokenId;

protean::GrammarSource source_of(std::uint8_t kind, std::string_view text) {
  if (kind % 5 == 0) {
    return {protean::RegexPattern{std::string(text)}};
  }
  if (kind % 5 == 1) {
    return {protean::AnyText{{std::string(text)}}};
  }
  if (kind % 5 == 2) {
    return {protean::GbnfText{std::string(text)}};
  }
  boost::json::error_code error;
  boost::json::value schema = boost::json::parse({text.data(), text.size()}, error);
  return {protean::JsonSchema{
      .schema = std::move(schema),
      .whitespace = kind % 5 == 3 ? protean::JsonWhitespace{} : protean::kSpacedSeparators,
      .open_properties = kind % 8 > 3}};
}

}  // namespace

// The first byte says whether the rest is a pattern, a text to stop at, a grammar or a schema. If
// it compiles, some token must be allowed at each place, and a text that may end must match.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 9) {
    return 0;
  }
  const std::string_view text(reinterpret_cast<const char*>(data) + 8, size - 8);
  const protean::GrammarSource source = source_of(data[0], text);
  const auto grammar = protean::Grammar::compile(source);
  if (!grammar) {
    protean::check(!grammar.error().message.empty(), "an error says what is wrong");
    return 0;
  }
  static const protean::TokenList kTokenizer = protean::TokenList::json_pieces();
  const protean::TokenList& tokenizer = kTokenizer;
  const int vocab = tokenizer.vocab_size();
  static const protean::GrammarTokens kTokens(kTokenizer, vocab, {kTokenizer.eos()});
  const auto constraint =
      kTokens.constrain(source, std::to_string(data[0]) + " " + std::string(text));
  protean::check(constraint.ok(), "the vocabulary has all bytes");
  std::vector<TokenId> answer;
  std::string written;
  std::vector<std::uint64_t> mask(protean::token_mask_words(vocab));
  for (std::size_t n = 0; n < 48; ++n) {
    (*constraint)->allowed_after(answer, mask);
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < vocab; ++id) {
      if ((mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1U) != 0) {
        allowed.push_back(id);
      }
    }
    protean::check(!allowed.empty(), "some token may always come");
    if (allowed.back() == tokenizer.eos()) {
      protean::check((*grammar)->matches(written), "what may end matches");
      allowed.pop_back();
    }
    if (allowed.empty()) {
      break;
    }
    answer.push_back(allowed[data[1 + n % 7] * (n + 1) % allowed.size()]);
    written += tokenizer.bytes(answer.back());
  }
  return 0;
}
