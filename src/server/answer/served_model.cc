#include "server/answer/served_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <optional>
#include <utility>

#include "server/answer/infill_prompt.h"
#include "server/answer/prompts.h"
#include "server/call/tool_fields.h"

namespace protean {
namespace {

constexpr int kDefaultCompletionTokens = 16;  // OpenAI's

// A normalizer may shorten a text before it is split into tokens: Unicode's compatibility forms
// shorten it to a quarter at most.
constexpr std::int64_t kNormalizerShrinks = 4;

using Tokens = std::vector<TokenId>;

ApiError too_long(std::int64_t prompt, std::int64_t wanted, int max_model_len,
                  const GenerationCall& call) {
  const std::string_view input = input_name(call);
  const std::string problem =
      wanted == 0  // as embeddings and scores, which have no answer
          ? fmt::format("the {0} has {1}; shorten the {0}", input, prompt)
          : fmt::format(
                "{} were requested: {} in the {} and {} for the answer; shorten the {} or "
                "lower {}",
                static_cast<std::uint64_t>(prompt) + static_cast<std::uint64_t>(wanted), prompt,
                input, wanted, input, call.names.max_tokens);
  return {.message =
              fmt::format("this model's context holds {} tokens, but {}", max_model_len, problem),
          .param = std::string(input),
          .code = "context_length_exceeded"};
}

// Returns the most tokens that the answer may have: as asked, else as many as fit.
Checked<int> answer_length(std::int64_t prompt, const GenerationCall& call, int max_model_len) {
  const std::int64_t room = max_model_len - prompt;
  std::int64_t wanted = call.max_tokens.value_or(
      call.chat() ? std::max<std::int64_t>(room, 1)
                  : std::clamp<std::int64_t>(room, 1, kDefaultCompletionTokens));
  if (call.cut_at_context) {
    wanted = std::min(wanted, std::max<std::int64_t>(room, 1));
  }
  if (wanted > room) {
    return too_long(prompt, wanted, max_model_len, call);
  }
  return static_cast<int>(wanted);
}

SamplingParams sampling_of(const SamplingFields& asked, const GenerationDefaults& defaults) {
  const SamplingParams plain;
  SamplingParams sampling;
  sampling.temperature = asked.temperature.value_or(defaults.temperature.value_or(1.0F));
  sampling.top_k = asked.top_k.value_or(defaults.top_k.value_or(plain.top_k));
  sampling.top_p = asked.top_p.value_or(defaults.top_p.value_or(plain.top_p));
  sampling.min_p = asked.min_p.value_or(defaults.min_p.value_or(plain.min_p));
  sampling.repetition_penalty = asked.repetition_penalty.value_or(plain.repetition_penalty);
  sampling.presence_penalty = asked.presence_penalty.value_or(plain.presence_penalty);
  sampling.frequency_penalty = asked.frequency_penalty.value_or(plain.frequency_penalty);
  return sampling;
}

Tokens stop_ids_of(const StopFields& stop, const ServedModel& model, bool infill) {
  Tokens ids = stop.token_ids;
  if (!stop.ignore_eos) {
    const Tokens ends = end_tokens(*model.tokenizer, model.defaults);
    ids.insert(ids.end(), ends.begin(), ends.end());
  }
  if (infill && !stop.ignore_eos) {
    const Tokens ends = infill_end_tokens(model.infill);
    ids.insert(ids.end(), ends.begin(), ends.end());
  }
  return ids;
}

LogprobsWanted logprobs_of(const GenerationCall& call) {
  const ReportFields& report = call.report;
  LogprobsWanted wanted{.answer = report.logprobs,
                        .top = report.logprobs ? report.top_logprobs : 0};
  wanted.prompt = report.prompt_logprobs || (call.prompt.echo && report.logprobs);
  wanted.top = std::max(wanted.top, report.prompt_logprobs.value_or(0));
  return wanted;
}

// Adds a word's tokens as it begins a text and as it follows a space, which may differ.
void add_bad_word(const std::string& word, const Tokenizer& tokenizer, TokenRules& rules) {
  const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size()));
  for (const std::string& text : {word, bare, " " + bare}) {
    Tokens tokens = text.empty() ? Tokens{} : tokenizer.encode(text, kPlainText);
    if (!tokens.empty() && std::find(rules.bad_words.begin(), rules.bad_words.end(), tokens) ==
                               rules.bad_words.end()) {
      rules.bad_words.push_back(std::move(tokens));
    }
  }
}

Checked<std::shared_ptr<const TokenRules>> rules_of(const TokenFields& asked,
                                                    const Tokenizer& tokenizer) {
  if (asked.bias.empty() && asked.allowed.empty() && asked.bad_words.empty()) {
    return std::shared_ptr<const TokenRules>();
  }
  auto rules = std::make_shared<TokenRules>();
  Tokens biased;
  for (const TokenBias& bias : asked.bias) {
    biased.push_back(bias.token);
  }
  if (auto refusal = refuse_unknown(biased, "logit_bias", tokenizer)) {
    return *refusal;
  }
  if (auto refusal = refuse_unknown(asked.allowed, "allowed_token_ids", tokenizer)) {
    return *refusal;
  }
  rules->bias = asked.bias;
  rules->allowed = asked.allowed;
  for (const std::string& word : asked.bad_words) {
    add_bad_word(word, tokenizer, *rules);
  }
  return std::shared_ptr<const TokenRules>(std::move(rules));
}

// What the choices of a call have in common.
struct Shared {
  std::shared_ptr<const TokenRules> rules;
  std::optional<AnswerFormat> format;
  std::string begun;
  Tokens begun_tokens;  // the last tokens of the prompt
};

// Returns the special token with that text, or -1. Added tokens that decode to text do not count.
TokenId special_token(const std::string& text, const Tokenizer& tokenizer) {
  const TokenId id = text.empty() ? -1 : tokenizer.find_special(text);
  return id >= 0 && tokenizer.bytes(id).empty() ? id : -1;
}

std::optional<ApiError> plan_tools(const GenerationCall& call, const ServedModel& model,
                                   Shared& shared) {
  if (!call.tools.offered()) {
    return std::nullopt;
  }
  if (model.tool_format == ToolFormat::kNone) {
    return ApiError{.message =
                        "tools are not supported by this model: its chat template has no "
                        "form of tool calls that is known here (--tool-call-parser)",
                    .param = "tools"};
  }
  ToolSyntax syntax = tool_syntax(model.tool_format);
  const std::string opening = syntax.triggers.empty() ? std::string() : syntax.triggers[0];
  const TokenId marker = special_token(opening, *model.tokenizer);
  const bool forced = call.tools.choice == ToolChoice::kRequired;
  // A grammar describes text, which holds no special tokens. So a call can be forced only if its
  // marker is put at the end of the prompt.
  if (marker >= 0 && (!forced || !syntax.begin.starts_with(opening))) {
    return std::nullopt;
  }
  if (marker >= 0) {
    syntax.begin.erase(0, opening.size());
  }
  auto format = tool_format_of(call.tools, syntax);
  if (!format || (!forced && call.format)) {
    return std::nullopt;
  }
  shared.format = std::move(format);
  if (marker >= 0) {
    shared.begun = opening;
    shared.begun_tokens = {marker};
  }
  return std::nullopt;
}

Checked<Shared> shared_of(const GenerationCall& call, const ServedModel& model) {
  if (call.embedding &&
      call.embedding->dimensions.value_or(model.embedding_size) != model.embedding_size) {
    return ApiError{.message = fmt::format("dimensions must be {}, the size of this model's "
                                           "embeddings, not {}",
                                           model.embedding_size, *call.embedding->dimensions),
                    .param = "dimensions"};
  }
  Shared shared{.format = call.format, .begun = {}, .begun_tokens = {}};
  auto rules = rules_of(call.tokens, *model.tokenizer);
  if (ApiError* error = std::get_if<ApiError>(&rules)) {
    return std::move(*error);
  }
  shared.rules = std::get<std::shared_ptr<const TokenRules>>(std::move(rules));
  if (auto refusal = plan_tools(call, model, shared)) {
    return *refusal;
  }
  if (shared.format && model.formats == nullptr) {
    return ApiError{
        .message = fmt::format("{} is not supported: this server has no structured output",
                               shared.format->field),
        .param = shared.format->field};
  }
  return shared;
}

void truncate(Tokens& prompt, const GenerationCall& call, int max_model_len) {
  if (call.prompt.truncate_to) {
    const std::int64_t room = max_model_len - call.max_tokens.value_or(1);
    const std::int64_t keep =
        *call.prompt.truncate_to == -1 ? std::max<std::int64_t>(room, 1) : *call.prompt.truncate_to;
    if (std::ssize(prompt) > keep) {
      prompt.erase(prompt.begin(), prompt.end() - keep);
    }
  }
}

// Makes the request without its seed and constraint.
Checked<Request> make_request(Tokens prompt, const GenerationCall& call, const ServedModel& model,
                              const Shared& shared) {
  Request request;
  request.prompt = std::move(prompt);
  if (request.prompt.empty() && model.tokenizer->bos() >= 0) {
    request.prompt.push_back(model.tokenizer->bos());
  }
  request.prompt.insert(request.prompt.end(), shared.begun_tokens.begin(),
                        shared.begun_tokens.end());
  if (request.prompt.empty()) {
    return ApiError{.message = "the prompt is empty, and this model has no token to begin with",
                    .param = std::string(input_name(call))};
  }
  const Checked<int> length = answer_length(std::ssize(request.prompt), call, model.max_model_len);
  if (const ApiError* error = std::get_if<ApiError>(&length)) {
    return *error;
  }
  request.max_tokens = std::get<int>(length);
  if (call.stop.min_tokens > request.max_tokens) {
    return ApiError{.message = fmt::format("min_tokens is {}, but the answer has at most {} tokens",
                                           call.stop.min_tokens, request.max_tokens),
                    .param = "min_tokens"};
  }
  request.pooling = call.embedding ? model.pooling : Pooling::kNone;
  request.min_tokens = static_cast<int>(call.stop.min_tokens);
  request.sampling = sampling_of(call.sampling, model.defaults);
  request.rules = shared.rules;
  request.stop_ids = stop_ids_of(call.stop, model, std::holds_alternative<InfillInput>(call.input));
  request.logprobs = logprobs_of(call);
  request.priority = call.urgency.priority;
  request.cache_salt = call.cache_salt;
  return request;
}

// Makes the choices of a call, prompt by prompt.
class Preparation {
 public:
  Preparation(const GenerationCall& call, const ServedModel& model, Shared shared,
              std::uint64_t chance)
      : call_(call), model_(model), shared_(std::move(shared)), chance_(chance) {}

  // Adds the n choices of one prompt. The call's seed is the first choice's; it counts up from
  // there.
  std::optional<ApiError> add(Prompt prompt) {
    truncate(prompt.tokens, call_, model_.max_model_len);
    Checked<Request> made = make_request(std::move(prompt.tokens), call_, model_, shared_);
    if (ApiError* error = std::get_if<ApiError>(&made)) {
      return std::move(*error);
    }
    for (std::int64_t i = 0; i < call_.n; ++i) {
      PreparedChoice choice{.request = std::get<Request>(made),
                            .echo = call_.prompt.echo ? prompt.text : std::string(),
                            .begun = shared_.begun};
      choice.request.logprobs.prompt &= i == 0;  // all choices are told those of the first
      choice.request.sampling.seed =
          call_.sampling.seed ? *call_.sampling.seed + static_cast<std::uint64_t>(i) : next_seed();
      if (auto error = constrain(choice.request)) {
        return error;
      }
      choices_.push_back(std::move(choice));
    }
    return std::nullopt;
  }
  std::vector<PreparedChoice> take() { return std::move(choices_); }

 private:
  std::optional<ApiError> constrain(Request& request) const {
    if (!shared_.format) {
      return std::nullopt;
    }
    auto constraint = model_.formats->constrain(*shared_.format);
    if (ApiError* error = std::get_if<ApiError>(&constraint)) {
      return std::move(*error);
    }
    request.constraint = std::get<std::shared_ptr<TokenConstraint>>(std::move(constraint));
    return std::nullopt;
  }
  std::uint64_t next_seed() {
    constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;  // keeps successive seeds far apart
    return std::exchange(chance_, chance_ + kGolden);
  }

  const GenerationCall& call_;
  const ServedModel& model_;
  const Shared shared_;
  std::uint64_t chance_;
  std::vector<PreparedChoice> choices_;
};

}  // namespace

std::optional<ApiError> refuse_text(std::int64_t bytes, std::string_view param,
                                    const ServedModel& model) {
  if (model.max_text_bytes == 0 || bytes <= model.max_text_bytes) {
    return std::nullopt;
  }
  return ApiError{.message = fmt::format("the text of the {} is too long: {} bytes cannot fit this "
                                         "model's context of {} tokens; shorten the {}",
                                         param, bytes, model.max_model_len, param),
                  .param = std::string(param),
                  .code = "context_length_exceeded"};
}

std::optional<ApiError> refuse_unknown(const Tokens& tokens, std::string_view param,
                                       const Tokenizer& tokenizer) {
  const int vocab = tokenizer.vocab_size();
  const auto bad =
      std::find_if(tokens.begin(), tokens.end(), [=](TokenId t) { return t < 0 || t >= vocab; });
  if (bad == tokens.end()) {
    return std::nullopt;
  }
  return ApiError{.message = fmt::format("{} holds the token id {}, but the model's are below {}",
                                         param, *bad, vocab),
                  .param = std::string(param)};
}

Tokens end_tokens(const Tokenizer& tokenizer, const GenerationDefaults& defaults) {
  if (defaults.stop_ids.empty() && tokenizer.eos() >= 0) {
    return {tokenizer.eos()};
  }
  return defaults.stop_ids;
}

bool takes_long(const GenerationCall& call, const ServedModel& model) {
  if (input_bytes(call) > kLongTextBytes) {
    return true;
  }
  Shared shared{.format = call.format, .begun = {}, .begun_tokens = {}};
  plan_tools(call, model, shared);  // prepare() reports errors
  return shared.format && model.formats != nullptr && !model.formats->knows(*shared.format);
}

std::int64_t most_text_bytes(const Tokenizer& tokenizer, int max_model_len) {
  std::size_t longest = 1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.bytes(id);
    longest = std::max(longest, bytes.empty() ? tokenizer.token_text(id).size() : bytes.size());
  }
  return static_cast<std::int64_t>(longest) * max_model_len * kNormalizerShrinks;
}

Checked<std::vector<PreparedChoice>> prepare(const GenerationCall& call, const ServedModel& model,
                                             std::uint64_t chance) {
  Checked<Shared> shared = shared_of(call, model);
  if (ApiError* error = std::get_if<ApiError>(&shared)) {
    return std::move(*error);
  }
  Preparation preparation(call, model, std::get<Shared>(std::move(shared)), chance);
  Checked<std::vector<Prompt>> prompts = make_prompts(call, model);
  if (ApiError* error = std::get_if<ApiError>(&prompts)) {
    return std::move(*error);
  }
  for (Prompt& prompt : std::get<std::vector<Prompt>>(prompts)) {
    if (auto error = preparation.add(std::move(prompt))) {
      return *error;
    }
  }
  return preparation.take();
}

}  // namespace protean
