#include "server/openai/text_endpoints.h"

#include <fmt/format.h>

#include <array>
#include <boost/json/serialize.hpp>
#include <memory>
#include <utility>

#include "server/answer/prompts.h"
#include "server/answer/stream_text.h"
#include "server/call/field_reader.h"
#include "server/call/sampling_fields.h"
#include "server/openai/chat_input.h"
#include "server/openai/openai_call.h"
#include "tokenizer/utf8.h"

namespace protean {
namespace {

namespace json = boost::json;
using Tokens = std::vector<TokenId>;

// Tokens with their texts in one answer, each of which takes some 250 bytes while it is written.
constexpr std::size_t kMostTokensShown = std::size_t{1} << 18;

constexpr std::array kTokenizeTable{
    string_field("model", "The model whose tokenizer is asked."),
    string_field("prompt", "Text to tokenise (vLLM)."),
    string_field("content", "Text to tokenise (llama-server)."),
    array_field("messages", "A chat to tokenise, with the other fields of a chat.",
                R"({"minItems":1})", kMessageTable),
    boolean_field("return_token_strs", "Adds the tokens' texts (vLLM)."),
    boolean_field("with_pieces", "Makes tokens objects with their text (llama-server)."),
    boolean_field("add_special_tokens", "Adds BOS as the tokenizer does (vLLM)."),
    boolean_field("add_special", "Adds BOS as the tokenizer does (llama-server)."),
    boolean_field("parse_special", "Reads special tokens in the text; true by default."),
};
constexpr std::array kDetokenizeTable{
    string_field("model", "The model whose tokenizer is asked."),
    required(array_field("tokens", "Token ids.", R"({"items":{"type":"integer","minimum":0}})")),
};

struct TokenizeOptions {
  std::string text;  // the prompt or content
  EncodeOptions encode;
  bool strings = false;  // vLLM's return_token_strs
  bool pieces = false;   // llama-server's with_pieces
};

// Returns a token's bytes as text, or as numbers if they are no UTF-8.
json::value piece_of(const Tokenizer& tokenizer, TokenId token) {
  const std::string_view bytes =
      tokenizer.bytes(token).empty() ? tokenizer.token_text(token) : tokenizer.bytes(token);
  if (utf8_valid_prefix(bytes) == bytes.size()) {
    return json::value(bytes);
  }
  json::array numbers;
  for (const char c : bytes) {
    numbers.push_back(static_cast<unsigned char>(c));
  }
  return numbers;
}

std::string shown_text(const Tokenizer& tokenizer, const Tokens& tokens) {
  StreamText text(tokenizer, StopMatcher({}, false), {.all = true}, true);
  std::string whole;
  for (const TokenId token : tokens) {
    whole += text.push(token);
  }
  return whole + text.finish();
}

Checked<std::string> tokens_json(const Tokens& tokens, const TokenizeOptions& options,
                                 const ServedModel& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  if ((options.pieces || options.strings) && tokens.size() > kMostTokensShown) {
    return ApiError{.message = fmt::format(
                        "with_pieces and return_token_strs show at most {} tokens, and the text "
                        "has {}: send it in parts, or without them",
                        kMostTokensShown, tokens.size()),
                    .param = options.pieces ? "with_pieces" : "return_token_strs"};
  }
  json::array list;
  json::array strings;
  for (const TokenId token : tokens) {
    if (options.pieces) {
      list.push_back(json::object{{"id", token}, {"piece", piece_of(tokenizer, token)}});
    } else {
      list.push_back(token);
    }
    if (options.strings) {
      strings.push_back(json::value(shown_text(tokenizer, {token})));
    }
  }
  json::object body{{"count", tokens.size()},
                    {"max_model_len", model.max_model_len},
                    {"tokens", std::move(list)}};
  body["token_strs"] = options.strings ? json::value(std::move(strings)) : json::value(nullptr);
  return json::serialize(body);
}

Checked<TextCall> tokenize_chat(json::value body, const TokenizeOptions& options) {
  Checked<GenerationCall> parsed = parse_chat_call(std::move(body));
  if (ApiError* error = std::get_if<ApiError>(&parsed)) {
    return std::move(*error);
  }
  auto call = std::make_shared<const GenerationCall>(std::get<GenerationCall>(std::move(parsed)));
  const auto run = [call, options](const ServedModel& model) -> Checked<std::string> {
    const Checked<Tokens> tokens = chat_tokens(*call, model);
    if (const ApiError* error = std::get_if<ApiError>(&tokens)) {
      return *error;
    }
    return tokens_json(std::get<Tokens>(tokens), options, model);
  };
  return TextCall{.model = call->model, .run = run};
}

std::optional<ApiError> not_an_object(const json::value& body) {
  if (body.is_object()) {
    return std::nullopt;
  }
  return ApiError{.message = "the body must be a JSON object, not " + describe(body)};
}

}  // namespace

Checked<TextCall> read_tokenize_call(json::value body) {
  if (auto error = not_an_object(body)) {
    return *error;
  }
  FieldReader fields(body.get_object(), kTokenizeTable);
  const bool content = fields.find("content") != nullptr;
  const bool messages = fields.find("messages") != nullptr;
  const bool prompt = fields.find("prompt") != nullptr;
  if (content + messages + prompt != 1) {
    return ApiError{.message =
                        "exactly one of prompt, messages and content is required: text to "
                        "tokenise, or a chat",
                    .param = messages && !prompt ? "messages" : "prompt"};
  }
  TokenizeOptions options;
  options.strings = fields.boolean("return_token_strs").value_or(false);
  options.pieces = fields.boolean("with_pieces").value_or(false);
  options.encode.add_special = fields.boolean("add_special_tokens").value_or(!content);
  options.encode.add_special = fields.boolean("add_special").value_or(options.encode.add_special);
  options.encode.parse_special = fields.boolean("parse_special").value_or(true);
  const std::string model = fields.string("model").value_or("");
  if (messages && !fields.failed()) {
    return tokenize_chat(std::move(body), options);
  }
  options.text = fields.string(content ? "content" : "prompt").value_or("");
  if (fields.failed()) {
    return *fields.error();
  }
  const auto run = [options = std::make_shared<const TokenizeOptions>(std::move(options))](
                       const ServedModel& served) -> Checked<std::string> {
    return tokens_json(served.tokenizer->encode(options->text, options->encode), *options, served);
  };
  return TextCall{.model = model, .run = run};
}

Checked<TextCall> read_detokenize_call(json::value body) {
  if (auto error = not_an_object(body)) {
    return *error;
  }
  FieldReader fields(body.get_object(), kDetokenizeTable);
  const std::string model = fields.string("model").value_or("");
  const json::array* list = fields.array("tokens");
  if (list == nullptr) {
    fields.fail("tokens", "tokens is required: an array of token ids");
    return *fields.error();
  }
  auto tokens = read_token_ids(*list, "tokens", "tokens", fields);
  if (fields.failed()) {
    return *fields.error();
  }
  const auto run = [tokens =
                        *std::move(tokens)](const ServedModel& served) -> Checked<std::string> {
    if (auto refusal = refuse_unknown(tokens, "tokens", *served.tokenizer)) {
      return *refusal;
    }
    const json::value text(shown_text(*served.tokenizer, tokens));
    return json::serialize(json::object{{"prompt", text}, {"content", text}});
  };
  return TextCall{.model = model, .run = run};
}

Fields tokenize_fields() {
  return kTokenizeTable;
}

Fields detokenize_fields() {
  return kDetokenizeTable;
}

}  // namespace protean
