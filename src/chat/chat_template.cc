#include "chat/chat_template.h"

#include <boost/json/parse.hpp>
#include <utility>

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::string_view kChatml =
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for part in message.content or [] %}{{- part.text }}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

// A trial that a template may not spend more than a moment on.
constexpr jinja::Limits kTrialLimits{
    .steps = 100'000, .value_bytes = 16 << 20, .output_bytes = 1 << 20};
constexpr std::string_view kTrialText = "what a user says";

void put_call_arguments_as_object(json::value& call) {
  json::object* object = call.if_object();
  json::value* function = object == nullptr ? nullptr : object->if_contains("function");
  json::object* members = function == nullptr ? nullptr : function->if_object();
  json::value* arguments = members == nullptr ? nullptr : members->if_contains("arguments");
  if (arguments == nullptr || !arguments->is_string()) return;
  json::error_code error;
  json::value parsed = json::parse(arguments->get_string(), error);
  if (!error && parsed.is_object()) *arguments = std::move(parsed);
}

void put_text_as_part(json::object& message) {
  json::value* content = message.if_contains("content");
  if (content == nullptr || !content->is_string()) return;
  *content = json::array{{{"type", "text"}, {"text", std::move(*content)}}};
}

// The messages as a template reads them.
json::array readable(json::array messages, bool as_parts) {
  for (json::value& message : messages) {
    json::object* object = message.if_object();
    if (object == nullptr) continue;
    if (as_parts) put_text_as_part(*object);
    json::value* calls = object->if_contains("tool_calls");
    if (calls == nullptr || !calls->is_array()) continue;
    for (json::value& call : calls->get_array()) put_call_arguments_as_object(call);
  }
  return messages;
}

// A request may set any name except the messages and the tools.
jinja::Names names_of(json::array messages, const ChatContext& context) {
  jinja::Names names{.values = {{"bos_token", context.bos_token},
                                {"eos_token", context.eos_token},
                                {"add_generation_prompt", context.add_generation_prompt},
                                {"documents", nullptr}},
                     .now = context.now};
  for (const auto& [name, value] : context.template_kwargs) names.values[name] = value;
  names.values["tools"] = context.tools.empty() ? json::value() : json::value(context.tools);
  names.values["messages"] = std::move(messages);
  return names;
}

bool comes_out(const jinja::Template& compiled, json::array messages) {
  const auto text = compiled.render(names_of(std::move(messages), {}), kTrialLimits);
  return text.ok() && text->find(kTrialText) != std::string::npos;
}

// Some templates, of models that see, drop content that is plain text.
bool reads_only_parts(const jinja::Template& compiled) {
  const json::array text{{{"role", "user"}, {"content", kTrialText}}};
  return !comes_out(compiled, text) && comes_out(compiled, readable(text, true));
}

Error of_template(const Error& error) {
  return {error.code, "chat template " + error.message};
}

}  // namespace

ChatTemplate::ChatTemplate(jinja::Template compiled)
    : compiled_(std::move(compiled)), wants_parts_(reads_only_parts(compiled_)) {}

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  Result<jinja::Template> compiled = jinja::Template::parse(source);
  if (!compiled.ok()) return of_template(compiled.error());
  return ChatTemplate(*std::move(compiled));
}

ChatTemplate ChatTemplate::chatml() {
  Result<ChatTemplate> parsed = parse(kChatml);
  check(parsed.ok(), "the built-in ChatML template is valid");
  return std::move(parsed).value();
}

Result<std::string> ChatTemplate::render(const json::array& messages,
                                         const ChatContext& context) const {
  const bool as_parts = wants_parts_ && !context.content_as_is;
  Result<std::string> text = compiled_.render(names_of(readable(messages, as_parts), context));
  return text.ok() ? std::move(text) : of_template(text.error());
}

}  // namespace protean
