#include "chat/chat_template.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <iterator>
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

// Bounds of a trial rendering.
constexpr jinja::Limits kTrialLimits{
    .steps = 100'000, .value_bytes = 16 << 20, .output_bytes = 1 << 20};
constexpr std::string_view kTrialText = "what a user says";
constexpr std::string_view kTrialTools =
    R"([{"type":"function","function":{"name":"trial","description":"A trial.","parameters":
        {"type":"object","properties":{"key":{"type":"string","description":"A key."}}}}}])";
constexpr std::string_view kTrialCall =
    R"([{"role":"user","content":"what a user says"},
        {"role":"assistant","content":null,"tool_calls":[{"id":"trial1234","type":"function",
         "function":{"name":"trial","arguments":"{\"trial_key\": \"trial value\"}"}}]},
        {"role":"tool","tool_call_id":"trial1234","name":"trial","content":"a result"}])";

// Templates write control tokens around a role ("<|" + role + "|>"), so the names of known roles
// count as the template's own text. Any other role counts as given.
bool is_known_role(std::string_view text) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  return std::find(std::begin(kRoles), std::end(kRoles), text) != std::end(kRoles);
}

bool is_own_text(std::span<const std::string_view> path, std::string_view text,
                 const ChatContext& context) {
  if (path.size() == 1 && path[0] == "bos_token") return text == context.bos_token;
  if (path.size() == 1 && path[0] == "eos_token") return text == context.eos_token;
  return path.size() == 2 && path[0] == "messages" && path[1] == "role" && is_known_role(text);
}

// A request may set any name except messages and tools. `context` must outlive the names.
jinja::Names names_of(json::array messages, const ChatContext& context) {
  jinja::Names names{
      .values = {{"bos_token", context.bos_token},
                 {"eos_token", context.eos_token},
                 {"add_generation_prompt", context.add_generation_prompt},
                 {"documents", nullptr}},
      .is_own = [&context](auto path, auto text) { return is_own_text(path, text, context); },
      .now = context.now};
  for (const auto& [name, value] : context.template_kwargs) names.values[name] = value;
  names.values["tools"] = context.tools.empty() ? json::value() : json::value(context.tools);
  names.values["messages"] = std::move(messages);
  return names;
}

// Renders within kTrialLimits. Returns nothing if that fails.
std::optional<std::string> tried(const jinja::Template& compiled, json::array messages,
                                 json::array tools) {
  const ChatContext context{.tools = std::move(tools),
                            .now = std::tm{.tm_mday = 1, .tm_year = 126}};
  auto text = compiled.render(names_of(std::move(messages), context), kTrialLimits);
  return text.ok() ? std::optional(std::move(text->text)) : std::nullopt;
}

bool shows_text(const jinja::Template& compiled, const MessageForm& form) {
  const json::array ask{{{"role", "user"}, {"content", kTrialText}}};
  const auto text = tried(compiled, in_form(ask, form), {});
  return text && text->find(kTrialText) != std::string::npos;
}

// Returns 2 if a tool call is rendered as JSON or between tags, 1 if it is missing or quoted, 0 for
// an error.
int quality_of_calls(const jinja::Template& compiled, const MessageForm& form) {
  const auto text = tried(compiled, in_form(json::parse(kTrialCall).as_array(), form),
                          json::parse(kTrialTools).as_array());
  if (!text) return 0;
  const auto has = [&](std::string_view part) { return text->find(part) != std::string::npos; };
  return has("trial value") && !has("'trial_key'") && !has("\\\"trial_key") ? 2 : 1;
}

// Finds the form that a template reads by trial. Templates of vision models may drop content that
// is plain text. Others fail on null content, which clients send with tool calls, or concatenate a
// call's arguments with text. Of the forms that show most, the first wins.
MessageForm find_form(const jinja::Template& compiled) {
  MessageForm best;
  best.text_as_parts = !shows_text(compiled, {}) && shows_text(compiled, {.text_as_parts = true});
  int quality = quality_of_calls(compiled, best);
  for (const bool arguments_as_text : {false, true}) {
    for (const bool null_as_empty : {false, true}) {
      if (quality == 2) return best;
      const MessageForm form{best.text_as_parts, null_as_empty, arguments_as_text};
      if (const int shown = quality_of_calls(compiled, form); shown > quality) {
        best = form;
        quality = shown;
      }
    }
  }
  return best;
}

Error of_template(const Error& error) {
  return {error.code, "chat template " + error.message};
}

}  // namespace

ChatTemplate::ChatTemplate(jinja::Template compiled)
    : compiled_(std::move(compiled)), form_(find_form(compiled_)) {}

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

Result<jinja::MarkedText> ChatTemplate::render(const json::array& messages,
                                               const ChatContext& context) const {
  const MessageForm form = context.content_as_is ? MessageForm{} : form_;
  Result<jinja::MarkedText> text = compiled_.render(names_of(in_form(messages, form), context));
  return text.ok() ? std::move(text) : of_template(text.error());
}

}  // namespace protean
