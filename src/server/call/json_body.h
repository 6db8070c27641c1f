#pragma once

#include <boost/json/value.hpp>
#include <string_view>

#include "http/api_error.h"

namespace protean {

// Parses a request body. Refuses keys given twice, because readers differ in which one they use,
// numbers that no double holds, nesting beyond 64 levels, and too many values. Errors say where.
Checked<boost::json::value> parse_json_body(std::string_view text);

}  // namespace protean
