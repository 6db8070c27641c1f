#include "server/ollama/ollama_models.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "contract/precision.h"
#include "server/call/field_reader.h"
#include "server/ollama/ollama_answer.h"
#include "server/ollama/ollama_call.h"

namespace protean {
namespace {

namespace json = boost::json;

// Time at which a model would be unloaded: never.
constexpr std::string_view kNever = "9999-12-31T23:59:59Z";

// A name without a tag gets Ollama's ":latest", without which some clients do not take it.
std::string tagged(const std::string& name) {
  return name.find(':') == std::string::npos ? name + ":latest" : name;
}

// Writes 12.8M or 7.6B.
std::string short_count(std::int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  return parameters >= 1'000'000'000 ? fmt::format("{:.1f}B", count / 1e9)
                                     : fmt::format("{:.1f}M", count / 1e6);
}

json::object details(const ServedModel& model) {
  const ModelCard& card = model.card;
  return {{"parent_model", ""},
          {"format", card.format},
          {"family", card.architecture},
          {"families", json::array{card.architecture}},
          {"parameter_size", short_count(card.parameters)},
          {"quantization_level", precision_label(model.form.form)}};
}

// Identifies a served model; clients compare it to notice another one under the same name.
std::string digest(const ServedModel& model, const std::string& name) {
  const std::string text = fmt::format("{}\n{}\n{}\n{}", name, model.card.architecture,
                                       model.card.parameters, model.card.weight_bytes);
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  std::string hex;
  for (const unsigned char byte : hash) {
    hex += fmt::format("{:02x}", byte);
  }
  return hex;
}

json::object entry(const ServedModel& model, const std::string& name) {
  return {{"name", tagged(name)},
          {"model", tagged(name)},
          {"size", model.card.weight_bytes},
          {"digest", digest(model, name)},
          {"details", details(model)}};
}

std::string describe_model(const ServedModel& model) {
  const std::string& family = model.card.architecture;
  json::array capabilities{"completion"};
  if (model.tool_format != ToolFormat::kNone) {
    capabilities.emplace_back("tools");
  }
  capabilities.emplace_back("embedding");
  return json::serialize(json::object{{"modelfile", ""},
                                      {"parameters", ""},
                                      {"template", ""},
                                      {"details", details(model)},
                                      {"model_info",
                                       {{"general.architecture", family},
                                        {"general.parameter_count", model.card.parameters},
                                        {family + ".context_length", model.max_model_len},
                                        {family + ".embedding_length", model.embedding_size}}},
                                      {"capabilities", std::move(capabilities)}});
}

constexpr std::array kOllamaNamedTable{
    string_field("model", "The model; the first one of the server by default."),
    string_field("name", "The older name of model."),
};

// Reads the model's name, which older clients call "name".
Checked<TextCall> read_named(const json::value& body,
                             std::function<Checked<std::string>(const ServedModel&)> run) {
  if (!body.is_object()) {
    return ApiError{.message = "the body must be a JSON object, not " + describe(body)};
  }
  FieldReader fields(body.get_object(), kOllamaNamedTable);
  const std::string older = fields.string("name").value_or("");
  const std::string name = fields.string("model").value_or(older);
  if (fields.failed()) {
    return *fields.error();
  }
  return TextCall{.model = without_latest(name), .run = std::move(run)};
}

}  // namespace

json::array ollama_tags(const ServedModel& model, std::int64_t created_s) {
  json::array models;
  for (const std::string& name : model.names) {
    json::object one = entry(model, name);
    one["modified_at"] = ollama_time(created_s);
    models.push_back(std::move(one));
  }
  return models;
}

json::array ollama_running(const ServedModel& model, std::optional<std::int64_t> expires_s) {
  json::object one = entry(model, model.names.front());
  one["expires_at"] = expires_s ? ollama_time(*expires_s) : std::string(kNever);
  one["size_vram"] = 0;  // the weights are in main memory
  one["context_length"] = model.max_model_len;
  return json::array{std::move(one)};
}

Checked<TextCall> read_ollama_show(json::value body) {
  return read_named(
      body, [](const ServedModel& model) -> Checked<std::string> { return describe_model(model); });
}

Checked<TextCall> read_ollama_pull(json::value body) {
  return read_named(body, [](const ServedModel&) -> Checked<std::string> {
    return std::string("{\"status\":\"success\"}\n");
  });
}

Fields ollama_named_fields() {
  return kOllamaNamedTable;
}

}  // namespace protean
