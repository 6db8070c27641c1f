#include "grammar/schema_document.h"

#include <boost/json/array.hpp>
#include <charconv>
#include <optional>

#include "base/check.h"

namespace protean::grammar {

namespace {

std::string escaped(std::string_view name) {
  std::string token;
  for (const char c : name) {
    if (c == '~' || c == '/') {
      token += c == '~' ? "~0" : "~1";
    } else {
      token += c;
    }
  }
  return token;
}

std::string unescaped(std::string_view token) {
  std::string name;
  for (std::size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size() && (token[i + 1] == '0' || token[i + 1] == '1')) {
      name += token[++i] == '0' ? '~' : '/';
    } else {
      name += token[i];
    }
  }
  return name;
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16).ptr ==
            text.data() + i + 3) {
      decoded += static_cast<char>(value);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

std::optional<std::size_t> as_index(std::string_view text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

std::string_view text_of(const boost::json::string& string) {
  return {string.data(), string.size()};
}

SchemaPlace SchemaPlace::child(std::string_view keyword) const {
  const boost::json::value* value = object()->if_contains(keyword);
  check(value != nullptr, "a schema's child is there");
  return {value, pointer + "/" + escaped(keyword)};
}

SchemaPlace SchemaPlace::child(std::string_view keyword, std::string_view name) const {
  return child(keyword).child(name);
}

SchemaPlace SchemaPlace::child(std::string_view keyword, std::size_t index) const {
  const SchemaPlace list = child(keyword);
  return {&list.schema->get_array()[index], list.pointer + "/" + std::to_string(index)};
}

Error unsupported_keyword(const SchemaPlace& place, std::string_view keyword) {
  return make_error(ErrorCode::kUnsupported, "schema at '{}/{}': the keyword '{}' is not supported",
                    place.pointer, keyword, keyword);
}

Error malformed_keyword(const SchemaPlace& place, std::string_view keyword, std::string_view what) {
  return make_error(ErrorCode::kInvalidArgument, "schema at '{}/{}': {}", place.pointer, keyword,
                    what);
}

Result<SchemaDocument> SchemaDocument::read(const boost::json::value& root) {
  SchemaDocument document(root);
  if (const boost::json::object* object = root.if_object(); object != nullptr) {
    if (const auto* id = object->if_contains("$id"); id != nullptr && id->is_string()) {
      document.id_ = text_of(id->get_string());
    }
  }
  if (const Status status = document.index(document.root(), 0); !status) {
    return status.error();
  }
  return document;
}

Status SchemaDocument::index(const SchemaPlace& place, int depth) {
  if (depth > kMaxDepth || ++nodes_ > kMaxNodes) {
    return make_error(ErrorCode::kExhausted,
                      "a schema is nested deeper than {} levels or has more than {} values",
                      kMaxDepth, kMaxNodes);
  }
  if (const boost::json::object* object = place.object(); object != nullptr) {
    const auto* anchor = object->if_contains("$anchor");
    if (anchor != nullptr && anchor->is_string()) {
      anchors_.emplace(text_of(anchor->get_string()), place);
    }
    for (const auto& member : *object) {
      const std::string_view name(member.key().data(), member.key().size());
      if (Status status = index(place.child(name), depth + 1); !status) {
        return status;
      }
    }
  } else if (const boost::json::array* array = place.schema->if_array(); array != nullptr) {
    for (std::size_t i = 0; i < array->size(); ++i) {
      const SchemaPlace item{&(*array)[i], place.pointer + "/" + std::to_string(i)};
      if (Status status = index(item, depth + 1); !status) {
        return status;
      }
    }
  }
  return {};
}

Result<SchemaPlace> SchemaDocument::resolve(const SchemaPlace& from) const {
  const boost::json::value& ref = *from.child("$ref").schema;
  if (!ref.is_string()) {
    return malformed_keyword(from, "$ref", "a reference is a string");
  }
  std::string_view uri = text_of(ref.get_string());
  if (!id_.empty() && uri.starts_with(id_)) {
    uri.remove_prefix(id_.size());
  }
  if (!uri.empty() && !uri.starts_with('#')) {
    return make_error(ErrorCode::kUnsupported,
                      "schema at '{}/$ref': '{}' is outside the schema; only references within it "
                      "('#/...') are supported",
                      from.pointer, uri);
  }
  return follow(from, uri.empty() ? uri : uri.substr(1));
}

Result<SchemaPlace> SchemaDocument::follow(const SchemaPlace& from,
                                           std::string_view fragment) const {
  const std::string path = percent_decoded(fragment);
  const auto missing = [&] {
    return make_error(ErrorCode::kInvalidArgument, "schema at '{}/$ref': there is nothing at '#{}'",
                      from.pointer, path);
  };
  if (!path.empty() && path.front() != '/') {
    const auto anchor = anchors_.find(path);
    return anchor == anchors_.end() ? Result<SchemaPlace>(missing()) : anchor->second;
  }
  SchemaPlace at = root();
  std::string_view rest = path;
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string name = unescaped(rest.substr(0, rest.find('/')));
    rest.remove_prefix(std::min(rest.find('/'), rest.size()));
    if (at.object() != nullptr && at.object()->contains(name)) {
      at = at.child(name);
      continue;
    }
    const boost::json::array* array = at.schema->if_array();
    const std::optional<std::size_t> index = as_index(name);
    if (array == nullptr || !index || *index >= array->size()) {
      return missing();
    }
    at = {&(*array)[*index], at.pointer + "/" + std::to_string(*index)};
  }
  return at;
}

}  // namespace protean::grammar
