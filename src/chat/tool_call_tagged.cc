#include "chat/tool_call_tagged.h"

#include <algorithm>
#include <utility>

namespace protean {
namespace {

constexpr std::size_t kMaxNameBytes = 512;

std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

TaggedCall::TaggedCall(const CallTags& tags, const std::vector<OfferedTool>& tools)
    : tags_(&tags), tools_(&tools) {}

ScanStep TaggedCall::step(char c, CallSink& sink) {
  switch (state_) {
    case State::kOpening:
      if (read_.empty() && is_json_space(c)) return ScanStep::kMore;
      if (tags_->name_begin.empty()) {
        state_ = State::kName;
        return name(c, sink);
      }
      read_ += c;
      if (!tags_->name_begin.starts_with(read_)) return ScanStep::kFail;
      if (read_ == tags_->name_begin) {
        read_.clear();
        state_ = State::kName;
      }
      return ScanStep::kMore;
    case State::kName:
      return name(c, sink);
    case State::kBetween:
      return between(c, sink);
    case State::kKey:
      return key(c, sink);
    case State::kTag:
      return tag(c, sink);
    case State::kValue:
      return value(c, sink);
  }
  return ScanStep::kFail;
}

ScanStep TaggedCall::name(char c, CallSink& sink) {
  const bool tag_begins = c == '<' && tags_->name_end == '\n';
  if (c != tags_->name_end && !tag_begins) {
    read_ += c;
    const bool possible = c != '<' && c != '\n' && read_.size() <= kMaxNameBytes;
    return possible ? ScanStep::kMore : ScanStep::kFail;
  }
  const std::string name(without_spaces(std::exchange(read_, {})));
  const auto found = std::find_if(tools_->begin(), tools_->end(),
                                  [&](const OfferedTool& tool) { return tool.name == name; });
  if (found == tools_->end()) return ScanStep::kFail;
  tool_ = &*found;
  state_ = State::kBetween;
  return tag_begins ? between(c, sink) : ScanStep::kMore;
}

ScanStep TaggedCall::between(char c, CallSink& sink) {
  if (read_.empty() && is_json_space(c)) return ScanStep::kMore;
  read_ += c;
  const bool ends = read_ == tags_->end;
  const bool goes_on = read_ == tags_->key_begin;
  if ((ends || goes_on) && keys_.empty()) sink.begin({}, tool_->name);
  if (ends) {
    sink.arguments(keys_.empty() ? "{}" : "}");
    return ScanStep::kDone;
  }
  if (goes_on) {
    read_.clear();
    key_.clear();
    return go(State::kKey);
  }
  const bool possible = tags_->end.starts_with(read_) || tags_->key_begin.starts_with(read_);
  return possible ? ScanStep::kMore : ScanStep::kFail;
}

ScanStep TaggedCall::key(char c, CallSink& sink) {
  if (c != tags_->key_end.front()) {
    key_ += c;
    const bool possible = c != '<' && c != '\n' && key_.size() <= kMaxNameBytes;
    return possible ? ScanStep::kMore : ScanStep::kFail;
  }
  key_ = without_spaces(key_);
  if (!keys_.insert(key_).second) return ScanStep::kFail;
  wanted_ = tags_->key_end;
  state_ = State::kTag;
  return tag(c, sink);
}

ScanStep TaggedCall::tag(char c, CallSink& sink) {
  const bool second = wanted_ == tags_->value_begin;
  if (second && read_.empty() && is_json_space(c)) return ScanStep::kMore;
  read_ += c;
  if (!wanted_.starts_with(read_)) return ScanStep::kFail;
  if (read_ != wanted_) return ScanStep::kMore;
  read_.clear();
  if (second || tags_->value_begin.empty()) return begin_value(sink);
  wanted_ = tags_->value_begin;
  return ScanStep::kMore;
}

std::string TaggedCall::member() const {
  return (keys_.size() == 1 ? "{" : ", ") + json_quoted(key_) + ": ";
}

ScanStep TaggedCall::begin_value(CallSink& sink) {
  kinds_ = argument_kinds(tool_->parameters, key_);
  value_.clear();
  held_.clear();
  matched_ = 0;
  value_begins_ = true;
  if (kinds_ == kTextKind) sink.arguments(member() + "\"");
  return go(State::kValue);
}

// The tag's first byte occurs in it once only, so no other match can begin inside a partial one.
ScanStep TaggedCall::value(char c, CallSink& sink) {
  const bool newline = c == '\n' && tags_->values_on_lines;
  if (std::exchange(value_begins_, false) && newline) return ScanStep::kMore;
  if (matched_ > 0 && c != tags_->value_end[matched_]) {
    keep(std::exchange(held_, {}), sink);
    matched_ = 0;
  }
  if (c == tags_->value_end[matched_]) {
    held_ += c;
    if (++matched_ == tags_->value_end.size()) end_value(sink);
    return ScanStep::kMore;
  }
  keep(std::exchange(held_, {}), sink);
  if (newline) {
    held_ = c;
  } else {
    keep({&c, 1}, sink);
  }
  return ScanStep::kMore;
}

void TaggedCall::keep(std::string_view text, CallSink& sink) {
  if (text.empty()) return;
  if (kinds_ != kTextKind) {
    value_ += text;
    return;
  }
  std::string escaped;
  for (const char c : text) append_escaped(c, escaped);
  sink.arguments(escaped);
}

void TaggedCall::end_value(CallSink& sink) {
  sink.arguments(kinds_ == kTextKind ? "\"" : member() + typed_argument(value_, kinds_));
  state_ = State::kBetween;
}

void TaggedCall::finish(CallSink& sink) {
  if (state_ != State::kValue) return;
  keep(std::exchange(held_, {}), sink);
  if (kinds_ != kTextKind) sink.arguments(member() + value_);
}

}  // namespace protean
