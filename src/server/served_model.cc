#include "server/served_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace protean {
namespace {

constexpr int kDefaultCompletionTokens = 16;  // OpenAI's

// A normalizer may make a text shorter before it is cut into tokens: the compatibility forms of
// Unicode make one byte of four at most.
constexpr std::int64_t kNormalizerShrinks = 4;

using Tokens = std::vector<TokenId>;

std::optional<ApiError> refuse_text(std::int64_t bytes, const GenerationCall& call,
                                    const ServedModel& model) {
  if (model.max_text_bytes == 0 || bytes <= model.max_text_bytes) {
    return std::nullopt;
  }
  const std::string_view what = call.chat() ? "messages" : "prompt";
  return ApiError{.message = fmt::format("the text of the {} is too long: {} bytes cannot fit this "
                                         "model's context of {} tokens; shorten the {}",
                                         what, bytes, model.max_model_len, what),
                  .param = std::string(what),
                  .code = "context_length_exceeded"};
}

std::int64_t text_bytes(const boost::json::array& messages) {
  std::int64_t bytes = 0;
  for (const boost::json::value& message : messages) {
    const boost::json::value& content = message.at("content");
    bytes += content.is_string() ? std::ssize(content.get_string()) : 0;
  }
  return bytes;
}

Checked<Tokens> chat_prompt(const ChatInput& input, const GenerationCall& call,
                            const ServedModel& model) {
  if (auto refusal = refuse_text(text_bytes(input.messages), call, model)) {
    return *refusal;  // before the template multiplies it
  }
  ChatContext context{.bos_token = model.bos_text,
                      .eos_token = model.eos_text,
                      .add_generation_prompt = input.add_generation_prompt,
                      .tools = {},
                      .template_kwargs = input.template_kwargs};
  if (model.local_time) {
    context.now = model.local_time();
  }
  const Result<std::string> text = model.chat_template->render(input.messages, context);
  if (!text.ok()) {
    return ApiError{.message = "the chat template refused the messages: " + text.error().message,
                    .param = "messages"};
  }
  if (auto refusal = refuse_text(std::ssize(*text), call, model)) {
    return *refusal;
  }
  // The template has written the special tokens it wants.
  return model.tokenizer->encode(*text, {.add_special = call.add_special_tokens.value_or(false)});
}

Checked<Tokens> completion_prompt(const TextOrTokens& prompt, const GenerationCall& call,
                                  const ServedModel& model) {
  if (const std::string* text = std::get_if<std::string>(&prompt)) {
    if (auto refusal = refuse_text(std::ssize(*text), call, model)) {
      return *refusal;
    }
    return model.tokenizer->encode(*text, {.add_special = call.add_special_tokens.value_or(true)});
  }
  const Tokens& tokens = std::get<Tokens>(prompt);
  const int vocab = model.tokenizer->vocab_size();
  const auto bad =
      std::find_if(tokens.begin(), tokens.end(), [=](TokenId t) { return t >= vocab; });
  if (bad != tokens.end()) {
    return ApiError{
        .message = fmt::format("prompt holds the token id {}, but the model's are below "
                               "{}",
                               *bad, vocab),
        .param = "prompt"};
  }
  return tokens;
}

ApiError too_long(std::int64_t prompt, std::int64_t wanted, int max_model_len, bool chat) {
  return {
      .message = fmt::format(
          "this model's context holds {} tokens, but {} were requested: {} in the {} and {} "
          "for the answer; shorten the {} or lower max_tokens",
          max_model_len, static_cast<std::uint64_t>(prompt) + static_cast<std::uint64_t>(wanted),
          prompt, chat ? "messages" : "prompt", wanted, chat ? "messages" : "prompt"),
      .param = chat ? "messages" : "prompt",
      .code = "context_length_exceeded"};
}

// How many tokens the answer may have: what was asked, else what fits.
Checked<int> answer_length(std::int64_t prompt, const GenerationCall& call, int max_model_len) {
  const std::int64_t room = max_model_len - prompt;
  const std::int64_t wanted = call.max_tokens.value_or(
      call.chat() ? std::max<std::int64_t>(room, 1)
                  : std::clamp<std::int64_t>(room, 1, kDefaultCompletionTokens));
  if (wanted > room) {
    return too_long(prompt, wanted, max_model_len, call.chat());
  }
  return static_cast<int>(wanted);
}

SamplingParams sampling_of(const SamplingFields& asked, const GenerationDefaults& defaults,
                           const RandomSource& random) {
  const SamplingParams plain;
  SamplingParams sampling;
  sampling.temperature = asked.temperature.value_or(defaults.temperature.value_or(1.0F));
  sampling.top_k = asked.top_k.value_or(defaults.top_k.value_or(plain.top_k));
  sampling.top_p = asked.top_p.value_or(defaults.top_p.value_or(plain.top_p));
  sampling.min_p = asked.min_p.value_or(defaults.min_p.value_or(plain.min_p));
  sampling.seed = asked.seed ? *asked.seed : random();
  return sampling;
}

Tokens stop_ids_of(const StopFields& stop, const ServedModel& model) {
  Tokens ids = stop.token_ids;
  if (!stop.ignore_eos) {
    const Tokens& defaults = model.defaults.stop_ids;
    ids.insert(ids.end(), defaults.begin(), defaults.end());
    if (defaults.empty() && model.tokenizer->eos() >= 0) {
      ids.push_back(model.tokenizer->eos());
    }
  }
  return ids;
}

Checked<Request> make_request(Checked<Tokens> prompt, const GenerationCall& call,
                              const ServedModel& model, const RandomSource& random) {
  if (const ApiError* error = std::get_if<ApiError>(&prompt)) {
    return *error;
  }
  Request request;
  request.prompt = std::get<Tokens>(std::move(prompt));
  if (request.prompt.empty() && model.tokenizer->bos() >= 0) {
    request.prompt.push_back(model.tokenizer->bos());
  }
  if (request.prompt.empty()) {
    return ApiError{.message = "the prompt is empty, and this model has no token to begin with",
                    .param = call.chat() ? "messages" : "prompt"};
  }
  const Checked<int> length = answer_length(std::ssize(request.prompt), call, model.max_model_len);
  if (const ApiError* error = std::get_if<ApiError>(&length)) {
    return *error;
  }
  request.max_tokens = std::get<int>(length);
  request.sampling = sampling_of(call.sampling, model.defaults, random);
  request.stop_ids = stop_ids_of(call.stop, model);
  request.cache_salt = call.cache_salt;
  return request;
}

}  // namespace

std::int64_t most_text_bytes(const Tokenizer& tokenizer, int max_model_len) {
  std::size_t longest = 1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.bytes(id);
    longest = std::max(longest, bytes.empty() ? tokenizer.token_text(id).size() : bytes.size());
  }
  return static_cast<std::int64_t>(longest) * max_model_len * kNormalizerShrinks;
}

Checked<std::vector<Request>> make_requests(const GenerationCall& call, const ServedModel& model,
                                            const RandomSource& random) {
  std::vector<Request> requests;
  const auto add = [&](Checked<Tokens> prompt) -> std::optional<ApiError> {
    Checked<Request> made = make_request(std::move(prompt), call, model, random);
    if (ApiError* error = std::get_if<ApiError>(&made)) {
      return std::move(*error);
    }
    requests.push_back(std::get<Request>(std::move(made)));
    return std::nullopt;
  };
  if (const ChatInput* chat = std::get_if<ChatInput>(&call.input)) {
    if (auto error = add(chat_prompt(*chat, call, model))) {
      return *error;
    }
    return requests;
  }
  for (const TextOrTokens& prompt : std::get<CompletionInput>(call.input).prompts) {
    if (auto error = add(completion_prompt(prompt, call, model))) {
      return *error;
    }
  }
  return requests;
}

}  // namespace protean
