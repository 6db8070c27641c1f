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

}  // namespace

ChatTemplate::ChatTemplate(std::shared_ptr<const jinja::Template> compiled)
    : compiled_(std::move(compiled)) {}

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
  return jinja::render_chat(*compiled_, messages, context, jinja::Limits{});
}

}  // namespace protean
