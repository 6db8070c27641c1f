#include "tokenizer/pipeline.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

constexpr std::size_t kLongestText = std::size_t{1} << 28;

// Encodes pieces by the model of a pipeline and appends their ids to one list.
class PieceEncoder {
 public:
  PieceEncoder(const Pipeline& pipeline, std::vector<TokenId>& ids) : bpe_(pipeline.model, ids) {
    if (pipeline.unigram) {
      unigram_.emplace(*pipeline.unigram, ids);
    }
  }
  void encode(std::string_view piece) { unigram_ ? unigram_->encode(piece) : bpe_.encode(piece); }

 private:
  BpeEncoder bpe_;
  std::optional<UnigramEncoder> unigram_;
};

class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(Pipeline pipeline) : parts_(std::move(pipeline)) {
    for (const AddedToken& token : parts_.added) {
      by_content_.emplace(token.content, token.id);
      if (token.special) {
        raw_and_special_.add(token);
      } else if (!token.normalized) {
        raw_and_special_.add(token);
        raw_.add(token);
      } else {
        AddedToken inside = token;
        inside.content = parts_.normalizer.apply_inside(token.content);
        if (!inside.content.empty()) {
          normalized_.add(std::move(inside));
        }
      }
    }
  }

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    check(text.size() <= kLongestText, "a text to encode is at most 256 MiB");
    std::vector<TokenId> ids;
    if (options.add_special) {
      ids = parts_.prefix;
    }
    PieceEncoder encoder(parts_, ids);
    const TokenMatcher& matcher = options.parse_special ? raw_and_special_ : raw_;
    std::size_t from = 0;
    while (const auto match = next_match(matcher, text, from, options.special_in)) {
      encode_raw(text.substr(from, match->begin - from), from == 0, encoder, ids);
      ids.push_back(match->id);
      from = match->end;
    }
    encode_raw(text.substr(from), from == 0, encoder, ids);
    if (options.add_special) {
      ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
    }
    return ids;
  }

  std::string_view bytes(TokenId id) const override {
    return known(id) ? std::string_view(parts_.tokens[id].bytes) : std::string_view();
  }
  std::string_view token_text(TokenId id) const override {
    return known(id) ? std::string_view(parts_.tokens[id].text) : std::string_view();
  }
  int vocab_size() const override { return static_cast<int>(parts_.tokens.size()); }
  TokenId bos() const override { return parts_.bos; }
  TokenId eos() const override { return parts_.eos; }
  TokenId find_special(std::string_view text) const override {
    const auto found = by_content_.find(text);
    return found == by_content_.end() ? -1 : found->second;
  }
  bool strips_leading_space() const override { return parts_.strips_leading_space; }
  std::string description() const override {
    return fmt::format("{}, {} tokens", parts_.description, parts_.tokens.size());
  }
  bool equals(const Tokenizer& other) const override {
    const auto* same = dynamic_cast<const PipelineTokenizer*>(&other);
    return same != nullptr && parts_ == same->parts_;
  }

 private:
  bool known(TokenId id) const { return id >= 0 && id < vocab_size(); }

  static std::optional<TokenMatcher::Match> next_match(const TokenMatcher& matcher,
                                                       std::string_view text, std::size_t from,
                                                       const TokenMatcher::Ranges& special_in) {
    return matcher.empty() ? std::nullopt : matcher.find(text, from, special_in);
  }

  // Encodes text in which the added tokens that match raw text have been found.
  void encode_raw(std::string_view raw, bool at_start, PieceEncoder& encoder,
                  std::vector<TokenId>& ids) const {
    if (raw.empty()) {
      return;
    }
    const std::string normalized =
        parts_.normalizer.empty() ? std::string() : parts_.normalizer.apply(raw);
    const std::string_view text = parts_.normalizer.empty() ? raw : normalized;
    std::size_t from = 0;
    while (const auto match = next_match(normalized_, text, from, {})) {
      encode_pieces(text.substr(from, match->begin - from), at_start && from == 0, encoder);
      ids.push_back(match->id);
      from = match->end;
    }
    encode_pieces(text.substr(from), at_start && from == 0, encoder);
  }

  void encode_pieces(std::string_view text, bool at_start, PieceEncoder& encoder) const {
    const PreTokenizer::Pieces pieces = parts_.pre_tokenizer.split(text, at_start);
    for (const std::string_view piece : pieces.pieces) {
      encoder.encode(piece);
    }
  }

  Pipeline parts_;
  TokenMatcher raw_;  // has no special tokens
  TokenMatcher raw_and_special_;
  TokenMatcher normalized_;                                   // never special
  std::unordered_map<std::string_view, TokenId> by_content_;  // views into parts_.added
};

}  // namespace

std::unique_ptr<Tokenizer> make_pipeline_tokenizer(Pipeline pipeline) {
  return std::make_unique<PipelineTokenizer>(std::move(pipeline));
}

}  // namespace protean
