#include "chat/chat_template.h"

#include "chat/ast.h"
#include "chat/parser.h"
#include "chat/render.h"

namespace protean {
namespace {

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

bool comes_out(const jinja::Template& compiled, const boost::json::array& messages) {
  const auto text = jinja::render_chat(compiled, messages, ChatContext{}, kTrialLimits);
  return text.ok() && text->find(kTrialText) != std::string::npos;
}

boost::json::array with_parts(boost::json::array messages) {
  for (boost::json::value& message : messages) {
    boost::json::object* object = message.if_object();
    boost::json::value* content = object == nullptr ? nullptr : object->if_contains("content");
    if (content == nullptr || !content->is_string()) continue;
    *content = boost::json::array{{{"type", "text"}, {"text", std::move(*content)}}};
  }
  return messages;
}

// Some templates, of models that see, drop content that is plain text.
bool reads_only_parts(const jinja::Template& compiled) {
  const boost::json::array text{{{"role", "user"}, {"content", kTrialText}}};
  return !comes_out(compiled, text) && comes_out(compiled, with_parts(text));
}

}  // namespace

ChatTemplate::ChatTemplate(std::shared_ptr<const jinja::Template> compiled)
    : compiled_(std::move(compiled)), wants_parts_(reads_only_parts(*compiled_)) {}

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  try {
    auto compiled = std::make_shared<jinja::Template>(jinja::parse_template(source));
    return ChatTemplate(std::move(compiled));
  } catch (const jinja::Failure& failure) {
    return make_error(failure.error.code, "chat template line {}: {}", failure.line,
                      failure.error.message);
  } catch (const std::exception& error) {
    return make_error(ErrorCode::kInternal, "reading the chat template failed: {}", error.what());
  }
}

ChatTemplate ChatTemplate::chatml() {
  Result<ChatTemplate> parsed = parse(kChatml);
  check(parsed.ok(), "the built-in ChatML template is valid");
  return std::move(parsed).value();
}

Result<std::string> ChatTemplate::render(const boost::json::array& messages,
                                         const ChatContext& context) const {
  if (!wants_parts_ || context.content_as_is) {
    return jinja::render_chat(*compiled_, messages, context, jinja::Limits{});
  }
  return jinja::render_chat(*compiled_, with_parts(messages), context, jinja::Limits{});
}

}  // namespace protean
