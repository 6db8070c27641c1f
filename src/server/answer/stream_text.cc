#include "server/answer/stream_text.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace protean {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool keep) : keep_(keep) {
  std::vector<Pattern> patterns;
  for (std::string& stop : stops) {
    check(!stop.empty(), "a stop string has a first byte");
    Pattern pattern{.text = std::move(stop), .fallback = {}};
    pattern.fallback.assign(pattern.text.size() + 1, 0);
    for (std::size_t i = 1; i < pattern.text.size(); ++i) {
      std::size_t length = pattern.fallback[i];
      while (length > 0 && pattern.text[length] != pattern.text[i]) {
        length = pattern.fallback[length];
      }
      pattern.fallback[i + 1] = pattern.text[length] == pattern.text[i] ? length + 1 : 0;
    }
    patterns.push_back(std::move(pattern));
  }
  lengths_.assign(patterns.size(), 0);
  patterns_ = std::make_shared<const std::vector<Pattern>>(std::move(patterns));
}

bool StopMatcher::Pattern::advance(std::size_t& length, char byte) const {
  while (length > 0 && text[length] != byte) {
    length = fallback[length];
  }
  length += text[length] == byte ? 1 : 0;
  return length == text.size();
}

std::string StopMatcher::push(std::string_view piece) {
  if (matched_) {
    return {};
  }
  for (const char byte : piece) {
    held_.push_back(byte);
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      const Pattern& pattern = (*patterns_)[i];
      if (pattern.advance(lengths_[i], byte) &&
          (!matched_ || pattern.text.size() > matched_->size())) {
        matched_ = pattern.text;
      }
    }
    if (matched_) {
      held_.resize(held_.size() - (keep_ ? 0 : matched_->size()));
      return std::exchange(held_, {});
    }
  }
  std::size_t hold = 0;
  for (const std::size_t length : lengths_) {
    hold = std::max(hold, length);
  }
  std::string sure = held_.substr(0, held_.size() - hold);
  held_.erase(0, sure.size());
  return sure;
}

std::string StopMatcher::finish() {
  return std::exchange(held_, {});
}

StreamText::StreamText(const Tokenizer& tokenizer, StopMatcher matcher, ShownTokens shown,
                       bool at_text_start)
    : tokenizer_(&tokenizer),
      shown_(std::move(shown)),
      decoder_(tokenizer, at_text_start),
      matcher_(std::move(matcher)) {}

std::string StreamText::decoded(TokenId token) {
  if (tokenizer_->bytes(token).empty() && shown_.hold(token)) {
    return decoder_.finish().append(tokenizer_->token_text(token));
  }
  return decoder_.push(token);
}

std::string StreamText::finish() {
  std::string rest = matcher_.push(decoder_.finish());
  return rest + matcher_.finish();
}

}  // namespace protean
