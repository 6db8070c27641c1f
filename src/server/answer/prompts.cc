#include "server/answer/prompts.h"

#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <utility>

#include "server/answer/infill_prompt.h"

namespace protean {
namespace {

using Tokens = std::vector<TokenId>;

std::int64_t text_bytes(const boost::json::array& messages) {
  std::int64_t bytes = 0;
  for (const boost::json::value& message : messages) {
    const boost::json::value& content = message.at("content");
    bytes += content.is_string() ? std::ssize(content.get_string()) : 0;
  }
  return bytes;
}

// Cuts the template's text after the last message, so that the answer continues that message.
Checked<jinja::MarkedText> cut_after_last_message(jinja::MarkedText rendered,
                                                  const boost::json::array& messages) {
  const std::string_view text = rendered.text;
  std::string_view content = messages.back().at("content").get_string();
  std::size_t at = text.rfind(content);
  if (at == std::string::npos) {  // the template may have trimmed the message
    constexpr std::string_view kSpace = " \t\r\n";
    const std::size_t first = content.find_first_not_of(kSpace);
    const std::size_t last = content.find_last_not_of(kSpace);
    content = first == std::string_view::npos ? std::string_view()
                                              : content.substr(first, last - first + 1);
    at = content.empty() ? std::string::npos : text.rfind(content);
  }
  if (at == std::string::npos) {
    return ApiError{.message =
                        "continue_final_message is not possible: the chat template does not "
                        "show the last message's text as it is",
                    .param = "continue_final_message"};
  }
  rendered.truncate(at + content.size());
  return rendered;
}

Checked<jinja::MarkedText> render(const GenerationCall& call, const ServedModel& model) {
  const ChatInput& input = std::get<ChatInput>(call.input);
  ChatContext context{.bos_token = model.chat.bos_token,
                      .eos_token = model.chat.eos_token,
                      .add_generation_prompt = input.add_generation_prompt,
                      .tools = call.tools.offered() ? call.tools.tools : boost::json::array(),
                      .template_kwargs = input.template_kwargs};
  if (model.local_time) {
    context.now = model.local_time();
  }
  Result<jinja::MarkedText> text = model.chat_template->render(input.messages, context);
  if (!text.ok()) {
    return ApiError{.message = "the messages cannot be rendered: " + text.error().message,
                    .param = std::string(call.names.input)};
  }
  if (input.continue_final_message) {
    return cut_after_last_message(*std::move(text), input.messages);
  }
  return *std::move(text);
}

Checked<Prompt> completion_prompt(const TextOrTokens& prompt, const GenerationCall& call,
                                  const ServedModel& model) {
  if (const std::string* text = std::get_if<std::string>(&prompt)) {
    if (auto refusal = refuse_text(std::ssize(*text), input_name(call), model)) {
      return *refusal;
    }
    const bool add_special = call.prompt.add_special_tokens.value_or(true);
    return Prompt{model.tokenizer->encode(*text, {.add_special = add_special}), *text};
  }
  const Tokens& tokens = std::get<Tokens>(prompt);
  if (auto refusal = refuse_unknown(tokens, input_name(call), *model.tokenizer)) {
    return *refusal;
  }
  return Prompt{tokens, call.prompt.echo ? decode(*model.tokenizer, tokens) : std::string()};
}

std::int64_t bytes_of(const ChatInput& chat) {
  return text_bytes(chat.messages);
}

std::int64_t bytes_of(const CompletionInput& completion) {
  std::int64_t bytes = 0;
  for (const TextOrTokens& prompt : completion.prompts) {
    const std::string* text = std::get_if<std::string>(&prompt);
    bytes += text == nullptr ? 0 : std::ssize(*text);
  }
  return bytes;
}

std::int64_t bytes_of(const InfillInput& infill) {
  std::int64_t bytes =
      std::ssize(infill.prefix) + std::ssize(infill.suffix) + std::ssize(infill.middle);
  for (const InfillChunk& chunk : infill.extra) {
    bytes += std::ssize(chunk.text);
  }
  return bytes;
}

Checked<std::vector<Prompt>> one_prompt(Checked<Tokens> tokens) {
  if (ApiError* error = std::get_if<ApiError>(&tokens)) {
    return std::move(*error);
  }
  return std::vector<Prompt>{{std::get<Tokens>(std::move(tokens)), {}}};
}

}  // namespace

std::string_view input_name(const GenerationCall& call) {
  const bool completion = std::holds_alternative<CompletionInput>(call.input);
  return completion && !call.embedding ? "prompt" : call.names.input;
}

std::int64_t input_bytes(const GenerationCall& call) {
  const std::int64_t bytes =
      std::visit([](const auto& input) { return bytes_of(input); }, call.input);
  return call.tools.offered() ? bytes + std::ssize(boost::json::serialize(call.tools.tools))
                              : bytes;
}

Checked<Tokens> chat_tokens(const GenerationCall& call, const ServedModel& model) {
  const ChatInput& input = std::get<ChatInput>(call.input);
  if (auto refusal = refuse_text(text_bytes(input.messages), call.names.input, model)) {
    return *refusal;  // before the template repeats it
  }
  const Checked<jinja::MarkedText> text = render(call, model);
  if (const ApiError* error = std::get_if<ApiError>(&text)) {
    return *error;
  }
  const jinja::MarkedText& rendered = std::get<jinja::MarkedText>(text);
  if (auto refusal = refuse_text(std::ssize(rendered.text), call.names.input, model)) {
    return *refusal;
  }
  // The template has added special tokens itself.
  EncodeOptions options{.add_special = call.prompt.add_special_tokens.value_or(false)};
  if (!model.special_tokens_in_content) {
    options.special_in = rendered.from_template;
  }
  return model.tokenizer->encode(rendered.text, options);
}

Checked<std::vector<Prompt>> make_prompts(const GenerationCall& call, const ServedModel& model) {
  if (call.chat()) {
    return one_prompt(chat_tokens(call, model));
  }
  if (const InfillInput* infill = std::get_if<InfillInput>(&call.input)) {
    return one_prompt(infill_prompt(*infill, call, model));
  }
  std::vector<Prompt> prompts;
  for (const TextOrTokens& input : std::get<CompletionInput>(call.input).prompts) {
    Checked<Prompt> prompt = completion_prompt(input, call, model);
    if (ApiError* error = std::get_if<ApiError>(&prompt)) {
      return std::move(*error);
    }
    prompts.push_back(std::get<Prompt>(std::move(prompt)));
  }
  return prompts;
}

}  // namespace protean
