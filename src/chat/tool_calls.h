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
};

std::string_view to_string(ToolFormat format);
Result<ToolFormat> parse_tool_format(
    std::string_view text);  // "hermes", "llama3_json", "mistral", "qwen3_coder", "glm45", "none"

// Which one a chat template is written for, by what it holds.
ToolFormat detect_tool_format(std::string_view template_source);

// What a model's text turns out to be, piece by piece.
struct ContentPiece {
  std::string text;
};
struct CallBegin {  // of call `index`; its arguments follow
  int index = 0;
  std::string id;  // the model's own where its format has one, else empty
  std::string name;
};
struct ArgumentsPiece {  // concatenated: the call's arguments as JSON text
  int index = 0;
  std::string text;
};
using ToolPiece = std::variant<ContentPiece, CallBegin, ArgumentsPiece>;

// Splits an answer's text into content and tool calls as it streams. Text that only looked like a
// call comes out as content, unchanged and in order: nothing is lost. Pieces do not depend on how
// the text was cut, but for their boundaries.
//
// What belongs to the format and is dropped: its marks, separators and a call's JSON around name,
// id and arguments; the newline that stands between content and a call's mark; text of white space
// alone before, between and behind calls. A call begins once its name is known to be offered and
// its arguments open; what goes wrong later ends it there, and the rest is content. Arguments keep
// their bytes, but that those sent as a JSON string are unwrapped and raw control characters
// inside their strings are escaped. At most 1 MiB is held back, and any text takes linear time.
//
// kQwenCoder and kGlm write values without quotes: the tool's schema says what they are, see
// TaggedCall. All but kLlama3 find calls anywhere, that one only where the answer starts with one.
// The marks of kMistral, and Llama's python tag, are special tokens: decode with them written out.
class ToolCallParser {
 public:
  // A call of a tool that is not offered is content.
  ToolCallParser(ToolFormat format, std::vector<OfferedTool> tools);
  ~ToolCallParser();
  ToolCallParser(ToolCallParser&&) noexcept;
  ToolCallParser& operator=(ToolCallParser&&) noexcept;

  std::vector<ToolPiece> push(std::string_view text);
  // What was held back. Where the answer was cut off, what looks like the beginning of a mark or of
  // a next call behind one is that and no content.
  std::vector<ToolPiece> finish(bool cut_off = false);
  bool in_call() const;  // one has begun whose arguments have no end

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// How calls are written, for building a grammar that makes a model call a tool: the text is
// `begin`, one call, (`between`, one call)*, `end`, where a call is `before_name`, the name,
// `before_arguments`, the arguments as a JSON object, `after_arguments`. With `tags` the arguments
// are not an object: each is `before_key`, its key, `before_value`, its value, `after_value`, where
// a value that is text by its schema stands as it is, and holds no `text_end`.
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
  std::vector<std::string> triggers;  // prefixes of begin + before_name that start a call, for
                                      // answers free to call or not
  std::optional<ArgumentTags> tags;
};
ToolSyntax tool_syntax(ToolFormat format);

}  // namespace protean
