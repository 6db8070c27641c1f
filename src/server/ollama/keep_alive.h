#pragma once

#include <boost/json/value.hpp>
#include <optional>

#include "base/units.h"
#include "server/residence.h"

namespace protean {

// Reads Ollama's keep_alive, the time that a model stays in memory after its last request: a number
// of seconds, or a text of numbers with the units h, m, s, ms, us and ns, such as "1h30m". A
// negative time is kForeverNs. Returns nothing for other values.
std::optional<TimeNs> read_keep_alive(const boost::json::value& value);

}  // namespace protean
