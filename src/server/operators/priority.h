#pragma once

#include <boost/json/object.hpp>

#include "http/message.h"
#include "ports/step_turn.h"
#include "server/service.h"

namespace protean {

// Answers /admin/priority: shows a model's priority and what its steps took, or sets the priority
// first if the body of a PUT names one.
HttpReply priority_reply(const HttpCall& call, const Service& service);

// Adds a model's priority and the time of its steps to what is shown of it.
void show_share(const TimeShare& share, boost::json::object& shown);

}  // namespace protean
