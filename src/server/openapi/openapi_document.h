#pragma once

#include <boost/json/object.hpp>
#include <string_view>

#include "server/call/field.h"

namespace protean {

// Returns the OpenAPI 3.1 description of the public port's HTTP API. Paths are those of routes(),
// and bodies are made of the tables that check them.
boost::json::object openapi_document(std::string_view version);

// Returns the fields of the body that a path takes; none if it takes no body.
Fields body_fields(std::string_view path);

}  // namespace protean
