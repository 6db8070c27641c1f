#include <boost/json/parse.hpp>

#include "base/small_file.h"
#include "chat/chat_template.h"

namespace protean {
namespace {

namespace json = boost::json;
using Path = std::filesystem::path;

bool is_there(const Path& path) {
  std::error_code ignored;  // a file that cannot be examined counts as missing
  return std::filesystem::is_regular_file(path, ignored);
}

// Returns an empty object if there is no such file.
Result<json::object> read_object(const Path& path) {
  if (!is_there(path)) return json::object();
  Result<std::string> text = read_small_file(path);
  if (!text.ok()) return text.error();
  json::error_code error;
  json::value parsed = json::parse(*text, error);
  if (error) {
    return make_error(ErrorCode::kCorrupt, "{} is not JSON: {}", path.string(), error.message());
  }
  if (!parsed.is_object()) {
    return make_error(ErrorCode::kCorrupt, "{} is not a JSON object", path.string());
  }
  return std::move(parsed.get_object());
}

std::string text_at(const json::object& object, std::string_view key) {
  const json::value* found = object.if_contains(key);
  return found != nullptr && found->is_string() ? std::string(found->get_string()) : std::string();
}

// Returns a special token, which is either its text or an object that has it as "content".
std::string token_at(const json::object& object, std::string_view key) {
  const json::value* found = object.if_contains(key);
  if (found != nullptr && found->is_object()) return text_at(found->get_object(), "content");
  return text_at(object, key);
}

// Returns chat_template, which is text or a list of {name, template}. Empty if there is none.
Result<std::string> template_in(const json::object& object, const Path& path) {
  const json::value* found = object.if_contains("chat_template");
  if (found == nullptr || found->is_null()) return std::string();
  if (found->is_string()) return std::string(found->get_string());
  if (!found->is_array()) {
    return make_error(ErrorCode::kCorrupt, "chat_template in {} is neither text nor a list",
                      path.string());
  }
  std::string names;
  for (const json::value& entry : found->get_array()) {
    if (!entry.is_object()) continue;
    const std::string name = text_at(entry.get_object(), "name");
    if (name == "default") return text_at(entry.get_object(), "template");
    names += (names.empty() ? "" : ", ") + name;
  }
  return make_error(ErrorCode::kCorrupt,
                    "chat_template in {} has no template named 'default' (it has: {})",
                    path.string(), names);
}

Result<std::string> find_template(const Path& directory, const json::object& config) {
  const Path source = directory / "chat_template.jinja";
  if (is_there(source)) return read_small_file(source);
  const Path legacy = directory / "chat_template.json";
  const Result<json::object> object = read_object(legacy);
  if (!object.ok()) return object.error();
  if (object->contains("chat_template")) return template_in(*object, legacy);
  return template_in(config, directory / "tokenizer_config.json");
}

}  // namespace

Result<ChatFiles> read_chat_files(const std::filesystem::path& directory) {
  const Result<json::object> config = read_object(directory / "tokenizer_config.json");
  if (!config.ok()) return config.error();
  const Result<json::object> special = read_object(directory / "special_tokens_map.json");
  if (!special.ok()) return special.error();
  Result<std::string> source = find_template(directory, *config);
  if (!source.ok()) return source.error();
  const auto token = [&](std::string_view key) {
    return token_at(config->contains(key) ? *config : *special, key);
  };
  return ChatFiles{std::move(*source), token("bos_token"), token("eos_token")};
}

}  // namespace protean
