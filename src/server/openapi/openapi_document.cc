#include "server/openapi/openapi_document.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <limits>
#include <string>

#include "server/anthropic/messages_call.h"
#include "server/call/sampling_fields.h"
#include "server/llama/llama_call.h"
#include "server/ollama/ollama_call.h"
#include "server/ollama/ollama_models.h"
#include "server/openai/embedding_call.h"
#include "server/openai/openai_call.h"
#include "server/openai/score_call.h"
#include "server/openai/text_endpoints.h"
#include "server/responses/responses_call.h"
#include "server/routes.h"

namespace protean {
namespace {

namespace json = boost::json;

struct BodyRow {
  std::string_view path;
  Fields (*fields)();
};

constexpr std::array kBodies{
    BodyRow{"/v1/chat/completions", chat_fields},
    BodyRow{"/v1/completions", completion_fields},
    BodyRow{"/v1/responses", responses_fields},
    BodyRow{"/v1/messages", messages_fields},
    BodyRow{"/v1/messages/count_tokens", messages_count_fields},
    BodyRow{"/v1/embeddings", embedding_fields},
    BodyRow{"/v1/score", score_fields},
    BodyRow{"/score", score_fields},
    BodyRow{"/v1/rerank", rerank_fields},
    BodyRow{"/v2/rerank", rerank_fields},
    BodyRow{"/rerank", rerank_fields},
    BodyRow{"/completion", llama_completion_fields},
    BodyRow{"/infill", llama_infill_fields},
    BodyRow{"/tokenize", tokenize_fields},
    BodyRow{"/detokenize", detokenize_fields},
    BodyRow{"/api/chat", ollama_chat_fields},
    BodyRow{"/api/generate", ollama_generate_fields},
    BodyRow{"/api/embed", ollama_embed_fields},
    BodyRow{"/api/embeddings", ollama_embeddings_fields},
    BodyRow{"/api/show", ollama_named_fields},
    BodyRow{"/api/pull", ollama_named_fields},
};

bool has_field(Fields fields, std::string_view name) {
  return std::any_of(fields.begin(), fields.end(),
                     [&](const Field& field) { return field.name == name; });
}

json::object object_schema(Fields fields);

// Returns the schema of a value that is given.
json::object value_schema(const Field& field) {
  constexpr std::array<std::string_view, 6> kTypes{"boolean", "integer", "number",
                                                   "string",  "array",   "object"};
  json::object schema;
  if (field.kind == FieldKind::kObject && !field.fields.empty()) {
    schema = object_schema(field.fields);
  } else if (field.kind != FieldKind::kAny) {
    schema["type"] = kTypes.at(static_cast<std::size_t>(field.kind));
  }
  if (field.kind == FieldKind::kArray && !field.fields.empty()) {
    schema["items"] = object_schema(field.fields);
  }
  if (field.kind == FieldKind::kInteger) {
    if (field.least > std::numeric_limits<std::int64_t>::min()) {
      schema["minimum"] = field.least;
    }
    if (field.most < kNoLimit) {
      schema["maximum"] = field.most;
    }
  }
  if (field.kind == FieldKind::kNumber) {
    schema[field.range.low_included ? "minimum" : "exclusiveMinimum"] = field.range.low;
    schema["maximum"] = field.range.high;
  }
  if (!field.schema.empty()) {
    const json::value more = json::parse({field.schema.data(), field.schema.size()});
    for (const json::key_value_pair& keyword : more.get_object()) {
      schema[keyword.key()] = keyword.value();
    }
  }
  return schema;
}

// A field that is null counts as absent.
json::object field_schema(const Field& field) {
  json::object schema = value_schema(field);
  if (!field.required && !schema.empty()) {
    if (schema.contains("type") && schema["type"].is_string() && field.schema.empty()) {
      schema["type"] = json::array{schema["type"], "null"};
    } else {
      schema = {{"anyOf", json::array{std::move(schema), json::object{{"type", "null"}}}}};
    }
  }
  schema["description"] = field.about;
  return schema;
}

json::object object_schema(Fields fields) {
  json::object properties;
  json::array required;
  for (const Field& field : fields) {
    properties[field.name] = field_schema(field);
    if (field.required) {
      required.push_back(json::value(field.name));
    }
  }
  json::object schema{{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) {
    schema["required"] = std::move(required);
  }
  return schema;
}

json::object header_parameter(const Field& field) {
  return {{"name", field.name},
          {"in", "header"},
          {"description", field.about},
          {"schema", value_schema(field)}};
}

json::array parameters_of(const RouteRow& row, Fields body) {
  json::array parameters;
  if (const std::size_t open = row.path.find('{'); open != std::string_view::npos) {
    const std::string_view name = row.path.substr(open + 1, row.path.size() - open - 2);
    parameters.push_back(
        {{"name", name}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}});
  }
  if (has_field(body, "stream")) {
    for (const Field& field : kUrgencyHeaders) {
      parameters.push_back(header_parameter(field));
    }
  }
  return parameters;
}

std::string_view content_type(const RouteRow& row) {
  switch (row.route) {
    case Route::kMetrics:
      return "text/plain";
    case Route::kDocs:
      return "text/html";
    case Route::kPage:
      return row.path == "/" ? "text/html" : "*/*";
    default:
      return "application/json";
  }
}

json::object answers_of(const RouteRow& row, Fields body) {
  json::object content{{content_type(row), json::object()}};
  const bool ollama = row.errors == ErrorStyle::kOllama;
  if (has_field(body, "stream")) {
    content[ollama ? "application/x-ndjson" : "text/event-stream"] = json::object();
  }
  const std::string_view error = ollama                                 ? "OllamaError"
                                 : row.errors == ErrorStyle::kAnthropic ? "AnthropicError"
                                                                        : "Error";
  const std::string reference = "#/components/schemas/" + std::string(error);
  return {{"200", {{"description", "The answer."}, {"content", std::move(content)}}},
          {"default",
           {{"description", "An error, which says what to do."},
            {"content", {{"application/json", {{"schema", {{"$ref", reference}}}}}}}}}};
}

json::object operation(const RouteRow& row, std::string_view method) {
  const Fields body = method == "POST" ? body_fields(row.path) : Fields();
  json::object described{{"summary", row.about}};
  if (json::array parameters = parameters_of(row, body); !parameters.empty()) {
    described["parameters"] = std::move(parameters);
  }
  if (!body.empty()) {
    described["requestBody"] = {
        {"required", true}, {"content", {{"application/json", {{"schema", object_schema(body)}}}}}};
  }
  described["responses"] = answers_of(row, body);
  if (row.needs_key) {  // if the server has keys
    described["security"] = json::array{json::object{{"bearer", json::array()}},
                                        json::object{{"apiKey", json::array()}}, json::object()};
  }
  return described;
}

json::object path_item(const RouteRow& row) {
  json::object item;
  for (const auto& [method, key] : {std::pair{"GET", "get"}, std::pair{"POST", "post"}}) {
    if (row.allow.find(method) != std::string_view::npos) {
      item[key] = operation(row, method);
    }
  }
  return item;
}

json::object components() {
  return json::parse(R"({
    "securitySchemes": {
      "bearer": {"type": "http", "scheme": "bearer"},
      "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"}
    },
    "schemas": {
      "Error": {"type": "object", "required": ["error"], "properties": {"error": {
        "type": "object", "required": ["message", "type", "param", "code"], "properties": {
          "message": {"type": "string"}, "type": {"type": "string"},
          "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}}},
      "AnthropicError": {"type": "object", "required": ["type", "error"], "properties": {
        "type": {"const": "error"}, "request_id": {"type": "string"}, "error": {
          "type": "object", "required": ["type", "message"], "properties": {
            "type": {"type": "string"}, "message": {"type": "string"}}}}},
      "OllamaError": {"type": "object", "required": ["error"], "properties": {
        "error": {"type": "string"}}}
    }
  })")
      .get_object();
}

}  // namespace

Fields body_fields(std::string_view path) {
  const auto found = std::find_if(kBodies.begin(), kBodies.end(),
                                  [&](const BodyRow& row) { return row.path == path; });
  return found == kBodies.end() ? Fields() : found->fields();
}

json::object openapi_document(std::string_view version) {
  json::object paths;
  for (const RouteRow& row : routes()) {
    paths[row.path] = path_item(row);
  }
  return {{"openapi", "3.1.0"},
          {"info",
           {{"title", "Protean"},
            {"version", version},
            {"description",
             "An LLM server. Unknown fields are ignored; fields that would change the answer and "
             "are not supported are refused with an error that names them."}}},
          {"paths", std::move(paths)},
          {"components", components()}};
}

}  // namespace protean
