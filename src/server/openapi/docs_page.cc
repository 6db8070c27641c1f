#include "server/openapi/docs_page.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <string>
#include <string_view>

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --mono: ui-monospace, monospace; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; }
summary { padding: .5rem .75rem; cursor: pointer; }
summary code { font-weight: 600; }
summary b { font: 600 .75rem var(--mono); display: inline-block; width: 3rem; }
.inside { padding: 0 .75rem .75rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
td, th { border-top: 1px solid var(--line); padding: .3rem .5rem .3rem 0; text-align: left;
         vertical-align: top; }
code { font: .9em var(--mono); background: var(--soft); border-radius: 3px; padding: 0 .2em;
       overflow-wrap: anywhere; }
.required { font-size: .8em; opacity: .7; }
)";

std::string escaped(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '&':
        html += "&amp;";
        break;
      case '"':
        html += "&quot;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

// Returns the policy's source for a style of these bytes.
std::string hash_source(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::array<unsigned char, 4 * ((SHA256_DIGEST_LENGTH + 2) / 3) + 1> base64{};
  EVP_EncodeBlock(base64.data(), digest.data(), SHA256_DIGEST_LENGTH);
  return fmt::format("'sha256-{}'", reinterpret_cast<const char*>(base64.data()));
}

// Returns the schema of a value that is given: a field may also be null.
const json::object& without_null(const json::object& schema) {
  const json::value* any = schema.if_contains("anyOf");
  return any != nullptr && any->get_array().size() == 2 &&
                 any->get_array()[1] == json::object{{"type", "null"}}
             ? any->get_array()[0].get_object()
             : schema;
}

std::string range_text(const json::object& schema) {
  std::string text;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kLimits{
      {{"minimum", "≥"}, {"exclusiveMinimum", ">"}, {"maximum", "≤"}}};
  for (const auto& [keyword, sign] : kLimits) {
    if (const json::value* limit = schema.if_contains(keyword)) {
      text += fmt::format(
          " {} {}", sign,
          limit->is_double() ? fmt::format("{}", limit->get_double()) : json::serialize(*limit));
    }
  }
  return text;
}

// Returns what values a schema allows, in a few words.
std::string type_text(const json::object& schema) {
  if (const json::value* only = schema.if_contains("const")) {
    return json::serialize(*only);
  }
  std::string text;
  const auto add = [&](std::string_view one) {
    text += fmt::format("{}{}", text.empty() ? "" : " or ", one);
  };
  if (const json::value* values = schema.if_contains("enum")) {
    for (const json::value& value : values->get_array()) {
      add(json::serialize(value));
    }
    return text;
  }
  const json::value* type = schema.if_contains("type");
  if (type != nullptr && type->is_array()) {
    for (const json::value& one : type->get_array()) {
      if (one != "null") {
        add(one.get_string());
      }
    }
  } else if (type != nullptr) {
    add(type->get_string());
  } else if (const json::value* any = schema.if_contains("anyOf")) {
    for (const json::value& one : any->get_array()) {
      add(type_text(one.get_object()));
    }
  }
  return text + range_text(schema);
}

// Writes a row for each field of an object, then rows for the fields of objects inside.
void add_rows(const json::object& schema, const std::string& prefix, std::string& html) {
  const json::value* properties = schema.if_contains("properties");
  if (properties == nullptr) {
    return;
  }
  const json::value* required = schema.if_contains("required");
  for (const json::key_value_pair& property : properties->get_object()) {
    const json::object& field = property.value().get_object();
    const json::object& inner = without_null(field);
    const std::string name = prefix + std::string(std::string_view(property.key()));
    const bool needed = required != nullptr &&
                        std::find(required->get_array().begin(), required->get_array().end(),
                                  json::value(property.key())) != required->get_array().end();
    const json::value* about = field.if_contains("description");
    html += fmt::format("<tr><td><code>{}</code>{}</td><td>{}</td><td>{}</td></tr>\n",
                        escaped(name), needed ? " <span class=\"required\">required</span>" : "",
                        escaped(type_text(inner)),
                        about == nullptr ? "" : escaped(about->get_string()));
    add_rows(inner, name + ".", html);
    const json::value* items = inner.if_contains("items");
    if (items != nullptr && items->is_object()) {
      add_rows(items->get_object(), name + "[].", html);
    }
  }
}

void add_operation(std::string_view method, std::string_view path, const json::object& operation,
                   std::string& html) {
  html += fmt::format(
      "<details><summary><b>{}</b> <code>{}</code> {}</summary><div class=\"inside\">\n", method,
      escaped(path), escaped(operation.at("summary").get_string()));
  std::string rows;
  if (const json::value* parameters = operation.if_contains("parameters")) {
    for (const json::value& parameter : parameters->get_array()) {
      const json::value* about = parameter.get_object().if_contains("description");
      rows += fmt::format(
          "<tr><td><code>{}</code> <span "
          "class=\"required\">{}</span></td><td>{}</td><td>{}</td></tr>\n",
          escaped(parameter.at("name").get_string()), escaped(parameter.at("in").get_string()),
          escaped(type_text(parameter.at("schema").get_object())),
          about == nullptr ? "" : escaped(about->get_string()));
    }
  }
  if (const json::value* body = operation.if_contains("requestBody")) {
    add_rows(body->at("content").at("application/json").at("schema").get_object(), "", rows);
  }
  if (!rows.empty()) {
    html += "<table><tr><th>Field</th><th>Value</th><th></th></tr>\n" + rows + "</table>\n";
  }
  html += "<p>Answers:";
  for (const json::key_value_pair& type :
       operation.at("responses").at("200").at("content").get_object()) {
    html += fmt::format(" <code>{}</code>", escaped(type.key()));
  }
  html += "</p></div></details>\n";
}

}  // namespace

HttpReply docs_page(const json::object& openapi) {
  const json::value& info = openapi.at("info");
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>{0} API</title><style>{1}</style></head><body>\n<h1>{0} API</h1>\n"
      "<p>Version {2}. {3} The same description for programs: <code>/openapi.json</code>.</p>\n",
      escaped(info.at("title").get_string()), kStyle, escaped(info.at("version").get_string()),
      escaped(info.at("description").get_string()));
  for (const json::key_value_pair& path : openapi.at("paths").get_object()) {
    for (const json::key_value_pair& operation : path.value().get_object()) {
      add_operation(operation.key() == "get" ? "GET" : "POST", path.key(),
                    operation.value().get_object(), html);
    }
  }
  html += "</body></html>\n";
  return {.content_type = "text/html; charset=utf-8",
          .body = std::move(html),
          .headers = {{"Content-Security-Policy",
                       fmt::format("default-src 'none'; style-src {}; base-uri 'none'; "
                                   "form-action 'none'; frame-ancestors 'none'",
                                   hash_source(kStyle))},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}}};
}

}  // namespace protean
