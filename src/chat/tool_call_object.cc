#include "chat/tool_call_object.h"

#include <algorithm>
#include <utility>

#include "chat/argument_types.h"

namespace protean {
ScanStep ArgumentsReader::step(char c, std::string& out) {
  switch (state_) {
    case State::kFirst:
      if (is_json_space(c)) return ScanStep::kMore;
      if (c == '"') {
        state_ = State::kQuoted;
        return ScanStep::kMore;
      }
      if (c != '{') return ScanStep::kFail;
      state_ = State::kObject;
      return object(c, out);
    case State::kObject:
      return object(c, out);
    default:
      return quoted(c, out);
  }
}

ScanStep ArgumentsReader::object(char c, std::string& out) {
  if (scanner_.in_string() && static_cast<unsigned char>(c) < 0x20) {
    append_escaped(c, out);
    return ScanStep::kMore;
  }
  const ScanStep step = scanner_.step(c);
  if (step != ScanStep::kFail) out += c;
  return step;
}

ScanStep ArgumentsReader::quoted(char c, std::string& out) {
  decoded_.clear();
  const ScanStep step = decoder_.step(c, decoded_);
  if (step == ScanStep::kFail) return step;
  if (step == ScanStep::kDone) return state_ == State::kQuotedEnd ? step : ScanStep::kFail;
  std::string inner;
  for (const char d : decoded_) {
    if (state_ != State::kQuotedObject && is_json_space(d)) continue;
    if (state_ == State::kQuotedEnd || (state_ == State::kQuoted && d != '{')) {
      return ScanStep::kFail;
    }
    state_ = State::kQuotedObject;
    const ScanStep inside = object(d, inner);
    if (inside == ScanStep::kFail) return inside;
    if (inside == ScanStep::kDone) state_ = State::kQuotedEnd;
  }
  out += inner;
  return ScanStep::kMore;
}

ScanStep CallObject::step(char c, CallSink& sink) {
  if (state_ == State::kInKey) {
    const ScanStep step = decoder_.step(c, key_);
    return step == ScanStep::kDone ? key_ended() : step;
  }
  if (state_ == State::kInValue) return value(c, sink);
  if (is_json_space(c)) return ScanStep::kMore;
  switch (state_) {
    case State::kOpen:
      return c == '{' ? go(State::kFirstKey) : ScanStep::kFail;
    case State::kFirstKey:
    case State::kKey:
      key_.clear();
      return c == '"' ? go(State::kInKey) : ScanStep::kFail;
    case State::kColon:
      return c == ':' ? go(State::kValue) : ScanStep::kFail;
    case State::kValue:
      state_ = State::kInValue;
      return value(c, sink);
    default:  // kNext
      if (c == ',') return go(State::kKey);
      return c == '}' && begun_ ? ScanStep::kDone : ScanStep::kFail;
  }
}

ScanStep CallObject::key_ended() {
  decoder_ = {};
  text_.clear();
  skipped_ = {};
  state_ = State::kColon;
  member_ = Member::kOther;
  const bool is_name = key_ == "name" || key_ == "tool_name";
  const bool is_arguments = key_ == "arguments" || key_ == "parameters";
  if (begun_) {
    const bool again = is_name || is_arguments;
    return again ? ScanStep::kFail : ScanStep::kMore;
  }
  if (is_name && !name_) {
    member_ = Member::kName;
  } else if (is_arguments && !has_arguments_) {
    member_ = Member::kArguments;
    has_arguments_ = true;
  } else if (key_ == "id" && id_.empty()) {
    member_ = Member::kId;
  } else if (key_ != "type" && key_ != "tool_call_id") {
    return ScanStep::kFail;
  }
  return ScanStep::kMore;
}

ScanStep CallObject::value(char c, CallSink& sink) {
  if (member_ == Member::kArguments) return arguments_value(c, sink);
  const ScanStep step = skipped_.step(c);
  if (step == ScanStep::kFail) return step;
  if (step == ScanStep::kDoneBefore) {
    state_ = State::kNext;
    return this->step(c, sink);
  }
  if (member_ != Member::kOther) {
    const ScanStep text = text_value(c, sink);
    if (text == ScanStep::kFail) return text;
  }
  return step == ScanStep::kDone ? go(State::kNext) : ScanStep::kMore;
}

// Reads one byte of a string value, which the scanner has already checked.
ScanStep CallObject::text_value(char c, CallSink& sink) {
  if (text_.empty()) {
    text_ = c;  // its opening quote
    return c == '"' ? ScanStep::kMore : ScanStep::kFail;
  }
  const ScanStep step = decoder_.step(c, text_);
  if (step != ScanStep::kDone) return step;
  decoder_ = {};
  text_.erase(0, 1);
  if (member_ == Member::kId) {
    id_ = std::move(text_);
    return step;
  }
  if (std::find(names_->begin(), names_->end(), text_) == names_->end()) return ScanStep::kFail;
  name_ = std::move(text_);
  if (has_arguments_) begin(sink);
  return step;
}

ScanStep CallObject::arguments_value(char c, CallSink& sink) {
  std::string out;
  const ScanStep step = arguments_.step(c, out);
  if (step == ScanStep::kFail) return step;
  if (!name_) {
    early_arguments_ += out;
  } else if (!out.empty()) {
    if (!begun_) begin(sink);
    sink.arguments(out);
  }
  if (step == ScanStep::kDone) {
    state_ = State::kNext;
    member_ = Member::kOther;
  }
  return ScanStep::kMore;
}

void CallObject::begin(CallSink& sink) {
  begun_ = true;
  sink.begin(id_, *name_);
  if (!early_arguments_.empty()) sink.arguments(early_arguments_);
}

}  // namespace protean
