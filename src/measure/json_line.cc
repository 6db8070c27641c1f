#include "measure/json_line.h"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cmath>
#include <utility>

namespace protean {
namespace {

namespace json = boost::json;

void replace_not_finite(json::value& value) {
  if (const double* number = value.if_double(); number != nullptr && !std::isfinite(*number)) {
    value = nullptr;
  } else if (json::array* array = value.if_array()) {
    for (json::value& element : *array) {
      replace_not_finite(element);
    }
  } else if (json::object* object = value.if_object()) {
    for (auto& member : *object) {
      replace_not_finite(member.value());
    }
  }
}

}  // namespace

std::string json_line(json::object report) {
  json::value whole = std::move(report);
  replace_not_finite(whole);
  return json::serialize(whole) + "\n";
}

}  // namespace protean
