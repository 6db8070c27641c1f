#pragma once

#include <boost/json/value.hpp>

#include "jinja/runtime.h"

namespace protean::jinja {

// The value of a template that `json` stands for. Its texts are views into `json`.
Value from_json(Runtime& runtime, const boost::json::value& json);

}  // namespace protean::jinja
