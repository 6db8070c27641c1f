#include "server/openai/score_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "server/answer/token_report.h"
#include "server/call/field_reader.h"
#include "server/call/sampling_fields.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxScoredTexts = 2048;
constexpr std::string_view kTextsToScoreSchema =
    R"({"type":["string","array"],"minLength":1,"minItems":1,"items":{"type":"string",)"
    R"("minLength":1}})";
constexpr Field kScoringModel = string_field("model", "The model that embeds the texts.");

constexpr std::array kScoreTable = joined(
    kPromptTable, kUrgencyTable,
    std::array{kScoringModel,
               required(any_field("text_1", kTextsToScoreSchema,
                                  "A text, which is compared with each of text_2, or a list.")),
               required(any_field("text_2", kTextsToScoreSchema,
                                  "A text or a list; as many as text_1 if both are lists.")),
               string_field("user", "A label, which changes nothing.")});

constexpr std::array kRerankTable = joined(
    kPromptTable, kUrgencyTable,
    std::array{
        kScoringModel,
        required(string_field("query", "What documents are compared with.", R"({"minLength":1})")),
        required(array_field("documents", "Texts, or objects with a text.",
                             R"({"minItems":1,"items":{"type":["string","object"],)"
                             R"("minLength":1,"required":["text"]}})")),
        integer_field("top_n", 0, kNoLimit,
                      "Returns so many of the best documents; 0, the default: all."),
        boolean_field("return_documents", "Adds the documents' texts; true by default."),
        string_field("user", "A label, which changes nothing.")});

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double product = 0.0;
  double squares_a = 0.0;
  double squares_b = 0.0;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    product += static_cast<double>(a[i]) * b[i];
    squares_a += static_cast<double>(a[i]) * a[i];
    squares_b += static_cast<double>(b[i]) * b[i];
  }
  const double lengths = std::sqrt(squares_a) * std::sqrt(squares_b);
  return lengths > 0.0 ? product / lengths : 0.0;
}

// Writes answers that are computed from embeddings and never streamed.
class ScoringWriter : public AnswerWriter {
 public:
  std::string begin(const AnswerUsage&) override { return {}; }
  std::string piece(int, const AnswerPiece&, const AnswerUsage&) override { return {}; }
  std::string end_choice(int, const ChoiceEnd&, const AnswerUsage&) override { return {}; }
  std::string end(const AnswerUsage&) override { return {}; }
  std::string error(const ApiError&) override { return {}; }
};

// The choices are the texts of text_1, then those of text_2.
class ScoreWriter final : public ScoringWriter {
 public:
  ScoreWriter(AnswerIdentity identity, std::size_t firsts)
      : identity_(std::move(identity)), firsts_(firsts) {}

  std::string whole(std::span<const AnswerChoice> choices, const AnswerUsage& usage) override {
    std::string data;
    for (std::size_t i = firsts_; i < choices.size(); ++i) {
      const std::size_t first = firsts_ == 1 ? 0 : i - firsts_;
      data +=
          fmt::format(R"({}{{"index":{},"object":"score","score":{}}})", data.empty() ? "" : ",",
                      i - firsts_, cosine(choices[first].embedding, choices[i].embedding));
    }
    return fmt::format(R"({{"id":{},"object":"list","created":{},"model":{},"data":[{}],)"
                       R"("usage":{{"prompt_tokens":{},"total_tokens":{}}}}})",
                       json_text(identity_.id), identity_.created_s, json_text(identity_.model),
                       data, usage.prompt_tokens, usage.prompt_tokens);
  }

 private:
  const AnswerIdentity identity_;
  const std::size_t firsts_;
};

// The choices are the query, then the documents.
class RerankWriter final : public ScoringWriter {
 public:
  RerankWriter(AnswerIdentity identity, std::vector<std::string> documents, std::size_t most)
      : identity_(std::move(identity)), documents_(std::move(documents)), most_(most) {}

  std::string whole(std::span<const AnswerChoice> choices, const AnswerUsage& usage) override {
    std::vector<double> scores;
    for (std::size_t i = 1; i < choices.size(); ++i) {
      scores.push_back(cosine(choices[0].embedding, choices[i].embedding));
    }
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    order.resize(std::min(order.size(), most_));
    std::string results;
    for (const std::size_t index : order) {
      const std::string document = documents_.empty() ? ""
                                                      : fmt::format(R"(,"document":{{"text":{}}})",
                                                                    json_text(documents_[index]));
      results += fmt::format(R"({}{{"index":{},"relevance_score":{}{}}})",
                             results.empty() ? "" : ",", index, scores[index], document);
    }
    return fmt::format(R"({{"id":{},"object":"list","model":{},"results":[{}],)"
                       R"("usage":{{"prompt_tokens":{},"total_tokens":{}}}}})",
                       json_text(identity_.id), json_text(identity_.model), results,
                       usage.prompt_tokens, usage.prompt_tokens);
  }

 private:
  const AnswerIdentity identity_;
  const std::vector<std::string> documents_;  // empty: not returned
  const std::size_t most_;
};

void check_text(std::string_view text, std::string_view where, FieldReader& fields) {
  if (text.empty()) {
    fields.fail(where, fmt::format("{} must not be empty: there is nothing to compare", where));
  }
}

// Reads a text or a list of texts and adds them to `inputs`. Returns their number.
std::size_t read_texts(FieldReader& fields, std::string_view name,
                       std::vector<TextOrTokens>& inputs) {
  const json::value* value = fields.find(name);
  const json::array list = value == nullptr     ? json::array()
                           : value->is_string() ? json::array{*value}
                           : value->is_array()  ? value->get_array()
                                                : json::array();
  if (list.empty()) {
    fields.fail(name, fmt::format("{} is required: a text or a list of texts", name));
  }
  for (const json::value& text : list) {
    if (!text.is_string()) {
      fields.expect(name, "a text or a list of texts", text);
      break;
    }
    check_text(text.get_string(), name, fields);
    inputs.emplace_back(std::string(std::string_view(text.get_string())));
  }
  return list.size();
}

// Reads the text of a document: a string, or an object with a text.
std::string document_text(const json::value& document, std::string_view where,
                          FieldReader& fields) {
  const json::object* object = document.if_object();
  const json::value* text = object == nullptr ? &document : object->if_contains("text");
  if (text == nullptr || !text->is_string()) {
    fields.expect(where, "a text or an object with a text", document);
    return {};
  }
  check_text(text->get_string(), where, fields);
  return std::string(std::string_view(text->get_string()));
}

// Reads what both calls have in common, and refuses calls of too many texts.
void read_shared_scoring(FieldReader& fields, GenerationCall& call, CompletionInput inputs) {
  call.model = fields.string("model").value_or("");
  call.prompt = read_prompt_fields(fields);
  call.urgency = read_urgency(fields);
  call.embedding.emplace();
  call.max_tokens = 0;
  fields.string("user");
  if (inputs.prompts.size() > kMaxScoredTexts) {
    fields.fail(call.names.input, fmt::format("the call has {} texts, at most {} are allowed",
                                              inputs.prompts.size(), kMaxScoredTexts));
  }
  call.input = std::move(inputs);
}

std::optional<ApiError> refuse_other_body(const json::value& body) {
  if (body.is_object()) {
    return std::nullopt;
  }
  return ApiError{.message = "the body must be a JSON object, not " + describe(body)};
}

}  // namespace

Checked<DialectCall> read_score_call(json::value body) {
  if (auto error = refuse_other_body(body)) {
    return *error;
  }
  FieldReader fields(body.get_object(), kScoreTable);
  GenerationCall call;
  call.names.input = "text_2";
  CompletionInput inputs;
  const std::size_t firsts = read_texts(fields, "text_1", inputs.prompts);
  const std::size_t seconds = read_texts(fields, "text_2", inputs.prompts);
  if (firsts != 1 && firsts != seconds) {
    fields.fail("text_2", fmt::format("text_1 has {} texts and text_2 has {}: there must be as "
                                      "many, or one in text_1",
                                      firsts, seconds));
  }
  read_shared_scoring(fields, call, std::move(inputs));
  if (fields.failed()) {
    return *fields.error();
  }
  const auto make = [firsts](const AnswerIdentity& identity, const Tokenizer&) {
    return std::make_unique<ScoreWriter>(identity, firsts);
  };
  return DialectCall{std::move(call), "score-", make};
}

Checked<DialectCall> read_rerank_call(json::value body) {
  if (auto error = refuse_other_body(body)) {
    return *error;
  }
  FieldReader fields(body.get_object(), kRerankTable);
  GenerationCall call;
  call.names.input = "documents";
  std::vector<std::string> documents;
  CompletionInput inputs;
  inputs.prompts.emplace_back(fields.required_string("query"));
  check_text(std::get<std::string>(inputs.prompts[0]), "query", fields);
  const json::array* list = fields.array("documents");
  if (list == nullptr || list->empty()) {
    fields.fail("documents", "documents is required: an array of at least one text");
  }
  for (std::size_t i = 0; list != nullptr && i < list->size() && !fields.failed(); ++i) {
    documents.push_back(document_text((*list)[i], fmt::format("documents[{}]", i), fields));
    inputs.prompts.emplace_back(documents.back());
  }
  const std::int64_t top = fields.integer("top_n").value_or(0);
  if (!fields.boolean("return_documents").value_or(true)) {
    documents.clear();
  }
  const std::size_t most = top == 0 ? inputs.prompts.size() : static_cast<std::size_t>(top);
  read_shared_scoring(fields, call, std::move(inputs));
  if (fields.failed()) {
    return *fields.error();
  }
  const auto make = [documents = std::move(documents), most](const AnswerIdentity& identity,
                                                             const Tokenizer&) {
    return std::make_unique<RerankWriter>(identity, documents, most);
  };
  return DialectCall{std::move(call), "rerank-", make};
}

Fields score_fields() {
  return kScoreTable;
}

Fields rerank_fields() {
  return kRerankTable;
}

}  // namespace protean
