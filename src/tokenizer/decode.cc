#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace protean {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Moves complete characters from the front of `pending` to `out`.
void settle(std::string& pending, std::string& out) {
  const std::string_view bytes = pending;
  std::size_t at = 0;
  while (at < bytes.size()) {
    const std::size_t valid = utf8_valid_prefix(bytes.substr(at));
    out += bytes.substr(at, valid);
    at += valid;
    if (at == bytes.size()) {
      break;
    }
    const Utf8Step step = utf8_step(bytes.substr(at));
    if (step.kind == Utf8Step::Kind::kUnfinished) {
      break;
    }
    out += kReplacement;
    at += step.bytes;
  }
  pending.erase(0, at);
}

}  // namespace

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool at_text_start)
    : tokenizer_(&tokenizer), strip_space_(at_text_start && tokenizer.strips_leading_space()) {}

std::string StreamDecoder::push(TokenId id) {
  std::string_view bytes = tokenizer_->bytes(id);
  if (strip_space_ && !bytes.empty()) {
    strip_space_ = false;
    if (bytes.front() == ' ') {
      bytes.remove_prefix(1);
    }
  }
  pending_ += bytes;
  std::string out;
  settle(pending_, out);
  return out;
}

std::string StreamDecoder::finish() {
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return std::string(unfinished ? kReplacement : std::string_view());
}

std::string decode(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  StreamDecoder decoder(tokenizer, true);
  std::string text;
  for (const TokenId id : ids) {
    text += decoder.push(id);
  }
  text += decoder.finish();
  return text;
}

}  // namespace protean
