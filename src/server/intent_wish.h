#pragma once

#include <string>

#include "contract/observation.h"
#include "http/api_error.h"
#include "server/recent_lengths.h"
#include "server/residence.h"

namespace protean {

// Reads {"intent": "min-latency"} and the load that it may state.
Checked<IntentWish> read_intent_wish(const std::string& body);

// Adds what the wish leaves open: as many requests at once as run now, and the mean lengths
// of the latest answers. The time and the cost of an answer are nearly linear in its length, so
// those of the mean length are nearly their means. A bound is for nine of ten answers: if the
// intent has one, estimates are for the length that so many of the latest answers do not exceed.
IntentWish with_load(IntentWish wish, const Observation& seen, const RecentLengths& lengths);

}  // namespace protean
