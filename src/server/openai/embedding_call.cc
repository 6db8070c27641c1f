#include "server/openai/embedding_call.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <utility>

#include "server/answer/embedding_text.h"
#include "server/answer/token_report.h"
#include "server/call/field_reader.h"
#include "server/call/sampling_fields.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxInputs = 2048;  // OpenAI's limit

constexpr std::array kEmbeddingTable = joined(
    kPromptTable, kUrgencyTable,
    std::array{string_field("model", "The model that embeds."),
               string_field("encoding_format", "How vectors are written; float by default.",
                            R"({"enum":["float","base64"]})"),
               integer_field("dimensions", 1, kNoLimit, "Must be the size of the model's vectors."),
               string_field("user", "A label, which changes nothing."),
               required(any_field("input", kTextsOrTokensSchema,
                                  "Text, token ids, or a list of these: a vector each."))});

std::string base64(const std::vector<float>& values) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  for (const float value : values) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (unsigned shift = 0; shift < 32; shift += 8) {
      bytes += static_cast<char>((bits >> shift) & 0xFFU);
    }
  }
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8U | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      text += i <= count ? kAlphabet[(bits >> (18 - 6 * i)) & 63U] : '=';
    }
  }
  return text;
}

// Writes embeddings, which are never streamed.
class EmbeddingWriter : public AnswerWriter {
 public:
  EmbeddingWriter(std::string model, bool as_base64)
      : model_(std::move(model)), base64_(as_base64) {}

  std::string begin(const AnswerUsage&) override { return {}; }
  std::string piece(int, const AnswerPiece&, const AnswerUsage&) override { return {}; }
  std::string end_choice(int, const ChoiceEnd&, const AnswerUsage&) override { return {}; }
  std::string end(const AnswerUsage&) override { return {}; }
  std::string error(const ApiError&) override { return {}; }
  std::string whole(std::span<const AnswerChoice> choices, const AnswerUsage& usage) override {
    std::string json = R"({"object":"list","data":[)";
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const std::vector<float> vector = unit_length(choices[i].embedding);
      json +=
          fmt::format(R"({}{{"object":"embedding","index":{},"embedding":{}}})", i == 0 ? "" : ",",
                      i, base64_ ? fmt::format("\"{}\"", base64(vector)) : numbers_json(vector));
    }
    json += fmt::format(R"(],"model":{},"usage":{{"prompt_tokens":{},"total_tokens":{}}}}})",
                        json_text(model_), usage.prompt_tokens, usage.prompt_tokens);
    return json;
  }

 private:
  const std::string model_;
  const bool base64_;
};

void check_inputs(const std::vector<TextOrTokens>& inputs, FieldReader& fields) {
  if (inputs.size() > kMaxInputs) {
    fields.fail("input", fmt::format("input has {} entries, at most {} are allowed", inputs.size(),
                                     kMaxInputs));
  }
  for (const TextOrTokens& input : inputs) {
    if (std::visit([](const auto& text) { return text.empty(); }, input)) {
      fields.fail("input", "input must not hold an empty text: there is nothing to embed");
    }
  }
}

}  // namespace

Checked<DialectCall> read_embedding_call(json::value body) {
  const json::object* object = body.if_object();
  if (object == nullptr) {
    return ApiError{.message = "the body must be a JSON object, not " + describe(body)};
  }
  FieldReader fields(*object, kEmbeddingTable);
  GenerationCall call;
  call.embedding.emplace();
  call.names.input = "input";
  call.model = fields.string("model").value_or("");
  call.prompt = read_prompt_fields(fields);
  call.urgency = read_urgency(fields);
  call.max_tokens = 0;
  const std::string format = fields.string("encoding_format").value_or("float");
  if (format != "float" && format != "base64") {
    fields.fail("encoding_format", "encoding_format must be \"float\" or \"base64\"");
  }
  call.embedding->dimensions = fields.integer("dimensions");
  fields.string("user");
  call.input = read_completion_input(fields, "input");
  check_inputs(std::get<CompletionInput>(call.input).prompts, fields);
  if (fields.failed()) {
    return *fields.error();
  }
  const auto make = [as_base64 = format == "base64"](const AnswerIdentity& identity,
                                                     const Tokenizer&) {
    return std::make_unique<EmbeddingWriter>(identity.model, as_base64);
  };
  return DialectCall{std::move(call), "embd-", make};
}

Fields embedding_fields() {
  return kEmbeddingTable;
}

}  // namespace protean
