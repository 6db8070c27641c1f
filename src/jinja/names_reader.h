#pragma once

#include <boost/json/value.hpp>
#include <string_view>
#include <vector>

#include "jinja/runtime.h"
#include "jinja/template.h"

namespace protean::jinja {

// Converts Names to a template's values. Texts are views into the JSON, so the Names must outlive
// the values.
class NamesReader {
 public:
  NamesReader(Runtime& runtime, const Names& names) : runtime_(runtime), names_(names) {}

  Value read() { return object(names_.values); }

 private:
  Value read(const boost::json::value& json);
  Value object(const boost::json::object& object);
  Value text(std::string_view text) const;

  Runtime& runtime_;
  const Names& names_;
  std::vector<std::string_view> path_;
};

}  // namespace protean::jinja
