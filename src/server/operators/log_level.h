#pragma once

#include "http/message.h"

namespace protean {

// Answers GET /admin/log-level and PUT /admin/log-level.
HttpReply log_level_reply(const HttpCall& call);

}  // namespace protean
