#include <algorithm>
#include <array>

#include "chat/tool_call_tagged.h"
#include "chat/tool_calls.h"

namespace protean {
namespace {

constexpr std::string_view kCallTag = "<tool_call>";
constexpr std::string_view kMistralTag = "[TOOL_CALLS]";

struct FormatName {
  ToolFormat format;
  std::string_view name;
};
constexpr std::array<FormatName, 6> kFormatNames{{{ToolFormat::kNone, "none"},
                                                  {ToolFormat::kHermes, "hermes"},
                                                  {ToolFormat::kLlama3, "llama3_json"},
                                                  {ToolFormat::kMistral, "mistral"},
                                                  {ToolFormat::kQwenCoder, "qwen3_coder"},
                                                  {ToolFormat::kGlm, "glm45"}}};

}  // namespace

std::string_view to_string(ToolFormat format) {
  for (const FormatName& known : kFormatNames) {
    if (known.format == format) return known.name;
  }
  return "none";
}

Result<ToolFormat> parse_tool_format(std::string_view text) {
  for (const FormatName& known : kFormatNames) {
    if (known.name == text) return known.format;
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "unknown tool call format '{}': use hermes, llama3_json, mistral, "
                    "qwen3_coder, glm45 or none",
                    text);
}

ToolFormat detect_tool_format(std::string_view template_source) {
  const auto has = [&](std::string_view text) {
    return template_source.find(text) != std::string_view::npos;
  };
  if (has(kMistralTag)) return ToolFormat::kMistral;
  if (has(kCallTag)) {
    if (has(kQwenTags.name_begin)) return ToolFormat::kQwenCoder;
    return has(kGlmTags.key_begin) ? ToolFormat::kGlm : ToolFormat::kHermes;
  }
  const bool llama = has("<|start_header_id|>") || has("<|header_start|>");
  return llama && has("\"parameters\":") ? ToolFormat::kLlama3 : ToolFormat::kNone;
}

ToolSyntax tool_syntax(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return {.begin = "<tool_call>\n",
              .before_name = "{\"name\": \"",
              .before_arguments = "\", \"arguments\": ",
              .after_arguments = "}",
              .between = "\n</tool_call>\n<tool_call>\n",
              .end = "\n</tool_call>",
              .triggers = {std::string(kCallTag)},
              .tags = {}};
    case ToolFormat::kLlama3:
      return {.begin = "",
              .before_name = "{\"name\": \"",
              .before_arguments = "\", \"parameters\": ",
              .after_arguments = "}",
              .between = "; ",
              .end = "",
              .triggers = {"{\"name\": \""},
              .tags = {}};
    case ToolFormat::kMistral:
      return {.begin = "[TOOL_CALLS][",
              .before_name = "{\"name\": \"",
              .before_arguments = "\", \"arguments\": ",
              .after_arguments = "}",
              .between = ", ",
              .end = "]",
              .triggers = {std::string(kMistralTag)},
              .tags = {}};
    case ToolFormat::kQwenCoder:
      return {.begin = "<tool_call>\n",
              .before_name = "<function=",
              .before_arguments = ">\n",
              .after_arguments = "</function>",
              .between = "\n</tool_call>\n<tool_call>\n",
              .end = "\n</tool_call>",
              .triggers = {std::string(kCallTag)},
              .tags = ArgumentTags{.before_key = "<parameter=",
                                   .before_value = ">\n",
                                   .after_value = "\n</parameter>\n",
                                   .text_end = "</parameter>"}};
    case ToolFormat::kGlm:
      return {.begin = "<tool_call>",
              .before_name = "",
              .before_arguments = "\n",
              .after_arguments = "",
              .between = "</tool_call>\n<tool_call>",
              .end = "</tool_call>",
              .triggers = {std::string(kCallTag)},
              .tags = ArgumentTags{.before_key = "<arg_key>",
                                   .before_value = "</arg_key>\n<arg_value>",
                                   .after_value = "</arg_value>\n",
                                   .text_end = "</arg_value>"}};
    case ToolFormat::kNone:
      break;
  }
  return {};
}

}  // namespace protean
