#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace protean::grammar {

// A schema and its JSON pointer in the document ("#/properties/a"). The document owns the schema.
struct SchemaPlace {
  const boost::json::value* schema = nullptr;
  std::string pointer;

  const boost::json::object* object() const { return schema->if_object(); }
  bool is_false() const { return schema->is_bool() && !schema->get_bool(); }
  SchemaPlace child(std::string_view keyword) const;
  SchemaPlace child(std::string_view keyword, std::string_view name) const;
  SchemaPlace child(std::string_view keyword, std::size_t index) const;
};

std::string_view text_of(const boost::json::string& string);

Error unsupported_keyword(const SchemaPlace& place, std::string_view keyword);
Error malformed_keyword(const SchemaPlace& place, std::string_view keyword, std::string_view what);

// Resolves $ref to places within the document.
class SchemaDocument {
 public:
  static constexpr int kMaxDepth = 200;
  static constexpr std::size_t kMaxNodes = 200000;

  // Refers to `root`.
  static Result<SchemaDocument> read(const boost::json::value& root);

  SchemaPlace root() const { return {root_, "#"}; }
  Result<SchemaPlace> resolve(const SchemaPlace& from) const;  // its "$ref"

 private:
  explicit SchemaDocument(const boost::json::value& root) : root_(&root) {}
  Status index(const SchemaPlace& place, int depth);
  Result<SchemaPlace> follow(const SchemaPlace& from, std::string_view fragment) const;

  const boost::json::value* root_;
  std::string id_;
  std::unordered_map<std::string, SchemaPlace> anchors_;
  std::size_t nodes_ = 0;
};

}  // namespace protean::grammar
