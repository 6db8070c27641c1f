#pragma once

#include <boost/json/object.hpp>

#include "server/residence.h"

namespace protean {

// Adds how far a job is as "progress"; nothing if it has not begun.
void show_progress(const JobProgress& progress, boost::json::object& job);

}  // namespace protean
