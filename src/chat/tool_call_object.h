#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/json_scanner.h"

namespace protean {

// Receives a tool call while it is read. What was reported cannot be taken back.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void begin(std::string_view id, std::string_view name) = 0;
  virtual void arguments(std::string_view text) = 0;
};

// Reads a call's arguments a byte at a time: a JSON object, or a JSON string that holds one.
// Escapes raw control characters inside strings, which models write and JSON forbids, and keeps
// every other byte.
class ArgumentsReader {
 public:
  // Appends the object's text to `out`, from its first brace on.
  ScanStep step(char c, std::string& out);

 private:
  ScanStep object(char c, std::string& out);
  ScanStep quoted(char c, std::string& out);

  enum class State : std::uint8_t { kFirst, kObject, kQuoted, kQuotedObject, kQuotedEnd };
  State state_ = State::kFirst;
  JsonScanner scanner_;
  JsonStringDecoder decoder_;
  std::string decoded_;
};

// Reads one call written as an object: {"name" or "tool_name": ..., "arguments" or "parameters":
// ..., "id": ..., "type": ..., "tool_call_id": ...} in any order. It is not a call if the name is
// not in `names`, or if a member is unknown, repeated or missing. Once the call has begun, ids and
// unknown members are skipped.
class CallObject {
 public:
  // `names` outlives the object.
  explicit CallObject(const std::vector<std::string>& names) : names_(&names) {}
  ScanStep step(char c, CallSink& sink);

 private:
  enum class State : std::uint8_t {
    kOpen,
    kFirstKey,
    kKey,
    kInKey,
    kColon,
    kValue,
    kInValue,
    kNext
  };
  enum class Member : std::uint8_t { kName, kId, kArguments, kOther };

  ScanStep key_ended();
  ScanStep value(char c, CallSink& sink);
  ScanStep text_value(char c, CallSink& sink);
  ScanStep arguments_value(char c, CallSink& sink);
  void begin(CallSink& sink);
  ScanStep go(State state) {
    state_ = state;
    return ScanStep::kMore;
  }

  const std::vector<std::string>* names_;
  State state_ = State::kOpen;
  Member member_ = Member::kOther;
  bool begun_ = false;
  std::string key_;
  std::string id_;
  std::optional<std::string> name_;
  bool has_arguments_ = false;
  std::string early_arguments_;  // arguments that came before the name
  std::string text_;             // the string value being read
  JsonStringDecoder decoder_;
  JsonScanner skipped_;
  ArgumentsReader arguments_;
};

}  // namespace protean
