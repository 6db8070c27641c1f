#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "chat/argument_types.h"

namespace protean {

// How a family of models writes a tool call into its text.
enum class ToolFormat : std::uint8_t {
  kNone,
  kHermes,   // <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>: Qwen, Hermes
  kLlama3,   // {"name": ..., "parameters": {...}}, perhaps after <|python_tag|>, several with ';'
  kMistral,  // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] or [TOOL_CALLS]name[ARGS]{...}
  kQwenCoder,  // <tool_call><function=name><parameter=key>value</parameter></function></tool_call>
  kGlm,        // <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>
  kGlm4,       // name\n{...}
  kGranite,    // <|tool_call|>[{"name": ..., "arguments": {...}}, ...]: Granite 3, Phi-4-mini
  kCommand,  // <|START_ACTION|>[{"tool_call_id": ..., "tool_name": ..., "parameters": {...}}, ...]
};

std::string_view to_string(ToolFormat format);
Result<ToolFormat> parse_tool_format(
    std::string_view text);  // "hermes", "llama3_json", "mistral", "qwen3_coder", "glm45", "glm4",
                             // "granite", "command", "none"

// Returns the format that a chat template is written for, judged by the marks in its source.
ToolFormat detect_tool_format(std::string_view template_source);

// The pieces that an answer's text consists of.
struct ContentPiece {
  std::string text;
};
struct CallBegin {  // begins call `index`; its arguments follow
  int index = 0;
  std::string id;  // the model's own id if its format has one, else empty
  std::string name;
};
struct ArgumentsPiece {  // a call's pieces together are its arguments as JSON text
  int index = 0;
  std::string text;
};
using ToolPiece = std::variant<ContentPiece, CallBegin, ArgumentsPiece>;

// Splits an answer's text into content and tool calls while it streams. Text that only looked like
// a call becomes content, unchanged and in order. How the text was cut changes only the boundaries
// of pieces.
//
// These belong to the format and are dropped: marks, separators and a call's JSON around name, id
// and arguments; a newline between content and a call's mark; white space alone before, between and
// after calls. A call begins once its name is known to be offered and its arguments have begun. An
// error later ends the call there, and the rest is content. Arguments keep their bytes, except that
// a JSON string around them is unwrapped and raw control characters in their strings are escaped.
// Holds back at most 1 MiB and takes linear time.
//
// kQwenCoder and kGlm write values without quotes, whose kind the tool's schema decides
// (TaggedCall). kLlama3 and kGlm4 find calls only if the answer begins with one, the other formats
// anywhere. The marks of kMistral, kGranite and kCommand and Llama's python tag are special tokens,
// which decoding must write out. Ids of kCommand count from 0 in each answer and are dropped.
class ToolCallParser {
 public:
  // A call of a tool that is not in `tools` is content.
  ToolCallParser(ToolFormat format, std::vector<OfferedTool> tools);
  ~ToolCallParser();
  ToolCallParser(ToolCallParser&&) noexcept;
  ToolCallParser& operator=(ToolCallParser&&) noexcept;

  std::vector<ToolPiece> push(std::string_view text);
  // Returns what was held back. If the answer was cut off after a call, the beginning of a mark or
  // of another call is dropped instead of becoming content.
  std::vector<ToolPiece> finish(bool cut_off = false);
  bool in_call() const;  // true while a call's arguments are incomplete

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// How calls are written, for a grammar that makes a model call a tool. The text is `begin`, one
// call,
// (`between`, one call)*, `end`. A call is `before_name`, the name, `before_arguments`, the
// arguments as a JSON object, `after_arguments`. With `tags` each argument is instead `before_key`,
// its key, `before_value`, its value, `after_value`; a value that is text by its schema has no
// quotes and must not contain `text_end`.
struct ArgumentTags {
  std::string before_key;
  std::string before_value;
  std::string after_value;
  std::string text_end;
};
struct ToolSyntax {
  std::string begin;
  std::string before_name;
  std::string before_arguments;
  std::string after_arguments;
  std::string between;
  std::string end;
  std::vector<std::string> triggers;  // prefixes of begin + before_name that start a call in an
                                      // answer that need not call
  std::optional<ArgumentTags> tags;
};
ToolSyntax tool_syntax(ToolFormat format);

}  // namespace protean
