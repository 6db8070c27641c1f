#pragma once

#include <boost/json/object.hpp>
#include <string>

namespace protean {

// Returns a report as one line of JSON. Numbers that are not finite become null, since JSON has no
// NaN and no infinity.
std::string json_line(boost::json::object report);

}  // namespace protean
