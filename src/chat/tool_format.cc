#include <algorithm>
#include <array>
#include <utility>

#include "chat/tool_call_tagged.h"
#include "chat/tool_calls.h"

namespace protean {
namespace {

constexpr std::string_view kCallTag = "<tool_call>";
constexpr std::string_view kMistralTag = "[TOOL_CALLS]";

constexpr std::string_view kGraniteTag = "<|tool_call|>";
constexpr std::string_view kCommandTag = "<|START_ACTION|>";

struct FormatName {
  ToolFormat format;
  std::string_view name;
};
constexpr std::array<FormatName, 9> kFormatNames{{{ToolFormat::kNone, "none"},
                                                  {ToolFormat::kHermes, "hermes"},
                                                  {ToolFormat::kLlama3, "llama3_json"},
                                                  {ToolFormat::kMistral, "mistral"},
                                                  {ToolFormat::kQwenCoder, "qwen3_coder"},
                                                  {ToolFormat::kGlm, "glm45"},
                                                  {ToolFormat::kGlm4, "glm4"},
                                                  {ToolFormat::kGranite, "granite"},
                                                  {ToolFormat::kCommand, "command"}}};

// What is around calls that are JSON objects.
struct AroundCalls {
  std::string_view between;
  std::string_view end;
  std::string_view trigger;
};
ToolSyntax json_syntax(std::string begin, std::string before_name, std::string before_arguments,
                       const AroundCalls& around) {
  return {.begin = std::move(begin),
          .before_name = std::move(before_name),
          .before_arguments = std::move(before_arguments),
          .after_arguments = "}",
          .between = std::string(around.between),
          .end = std::string(around.end),
          .triggers = {std::string(around.trigger)},
          .tags = {}};
}

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
                    "qwen3_coder, glm45, glm4, granite, command or none",
                    text);
}

ToolFormat detect_tool_format(std::string_view template_source) {
  const auto has = [&](std::string_view text) {
    return template_source.find(text) != std::string_view::npos;
  };
  if (has(kMistralTag)) return ToolFormat::kMistral;
  if (has(kCommandTag)) return ToolFormat::kCommand;
  if (has(kGraniteTag) || has("<|/tool|>")) return ToolFormat::kGranite;
  if (has(kCallTag)) {
    if (has(kQwenTags.name_begin)) return ToolFormat::kQwenCoder;
    return has(kGlmTags.key_begin) ? ToolFormat::kGlm : ToolFormat::kHermes;
  }
  if (has("<|observation|>")) return ToolFormat::kGlm4;
  const bool llama = has("<|start_header_id|>") || has("<|header_start|>");
  return llama && has("\"parameters\":") ? ToolFormat::kLlama3 : ToolFormat::kNone;
}

ToolSyntax tool_syntax(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return json_syntax("<tool_call>\n", R"({"name": ")", R"(", "arguments": )",
                         {"\n</tool_call>\n<tool_call>\n", "\n</tool_call>", kCallTag});
    case ToolFormat::kLlama3:
      return json_syntax("", R"({"name": ")", R"(", "parameters": )", {"; ", "", R"({"name": ")"});
    case ToolFormat::kMistral:
      return json_syntax("[TOOL_CALLS][", R"({"name": ")", R"(", "arguments": )",
                         {", ", "]", kMistralTag});
    case ToolFormat::kGranite:
      return json_syntax("<|tool_call|>[", R"({"name": ")", R"(", "arguments": )",
                         {", ", "]", kGraniteTag});
    case ToolFormat::kCommand:
      return json_syntax("<|START_ACTION|>[\n    ", R"({"tool_call_id": "0", "tool_name": ")",
                         R"(", "parameters": )", {",\n    ", "\n]", kCommandTag});
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
    case ToolFormat::kGlm4:
      return {.begin = "",
              .before_name = "",
              .before_arguments = "\n",
              .after_arguments = "",
              .between = "\n",
              .end = "",
              .triggers = {},
              .tags = {}};
    case ToolFormat::kNone:
      break;
  }
  return {};
}

}  // namespace protean
