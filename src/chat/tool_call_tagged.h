#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "chat/argument_types.h"
#include "chat/tool_call_object.h"

namespace protean {

// The tags around the parts of a call.
struct CallTags {
  std::string_view name_begin;  // empty if the name comes first
  std::string_view key_begin;
  std::string_view key_end;
  std::string_view value_begin;  // empty if key_end also begins the value
  std::string_view value_end;
  std::string_view end;
  char name_end = '\n';
  bool values_on_lines = false;  // newlines next to a value's tags do not belong to it
};

// <function=NAME> <parameter=KEY> VALUE </parameter> ... </function>
inline constexpr CallTags kQwenTags{.name_begin = "<function=",
                                    .key_begin = "<parameter=",
                                    .key_end = ">",
                                    .value_begin = "",
                                    .value_end = "</parameter>",
                                    .end = "</function>",
                                    .name_end = '>',
                                    .values_on_lines = true};
// NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> ... </tool_call>
inline constexpr CallTags kGlmTags{.name_begin = "",
                                   .key_begin = "<arg_key>",
                                   .key_end = "</arg_key>",
                                   .value_begin = "<arg_value>",
                                   .value_end = "</arg_value>",
                                   .end = "</tool_call>"};

// Reads one call written between tags a byte at a time, from behind its opening mark up to
// tags.end. Arguments become one JSON object. An argument that is text by the tool's schema is
// passed on as it comes; any other waits for its end, which shows its kind. It is not a call, or
// ends there, if the tool is not offered, a key is repeated, or anything but white space is between
// arguments.
class TaggedCall {
 public:
  // Both outlive the call.
  TaggedCall(const CallTags& tags, const std::vector<OfferedTool>& tools);

  ScanStep step(char c, CallSink& sink);
  // Ends the answer: reports the value that is held back.
  void finish(CallSink& sink);

 private:
  enum class State {
    kOpening,  // before the name, or in the tag before it
    kName,
    kBetween,  // before a key or the end, or in the tag of either
    kKey,
    kTag,  // inside wanted_
    kValue,
  };

  ScanStep name(char c, CallSink& sink);
  ScanStep between(char c, CallSink& sink);
  ScanStep key(char c, CallSink& sink);
  ScanStep tag(char c, CallSink& sink);
  ScanStep begin_value(CallSink& sink);
  ScanStep value(char c, CallSink& sink);
  void keep(std::string_view text, CallSink& sink);
  void end_value(CallSink& sink);
  std::string member() const;  // the JSON text before the value of key_
  ScanStep go(State state) {
    state_ = state;
    return ScanStep::kMore;
  }

  const CallTags* tags_;
  const std::vector<OfferedTool>* tools_;
  State state_ = State::kOpening;
  const OfferedTool* tool_ = nullptr;
  std::string read_;         // the tag or name being read, so far
  std::string_view wanted_;  // the tag that must follow
  std::string key_;
  std::set<std::string> keys_;  // keys so far, including key_
  ValueKinds kinds_ = kAnyKind;
  std::string value_;          // the value, unless it is passed on as it comes
  std::string held_;           // a newline and a tag that may end the value
  std::size_t matched_ = 0;    // bytes of that tag
  bool value_begins_ = false;  // no byte of the value has been read
};

}  // namespace protean
