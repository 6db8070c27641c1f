#pragma once

#include <boost/json/value.hpp>
#include <string_view>

#include "http/api_error.h"

namespace protean {

// Parses a request body more strictly than the library does: a key given twice is refused, as each
// reader would believe another one; so are numbers that no double holds, nesting beyond 64 and more
// values than memory should be spent on. Errors say line and column.
Checked<boost::json::value> parse_json_body(std::string_view text);

}  // namespace protean
