#pragma once

#include "http/handler.h"
#include "server/residence.h"
#include "server/service.h"

namespace protean {

// Answers GET /admin/configurations: the estimates that plans of the service's model have kept.
HttpHandler::Answer configurations_reply(const HttpCall& call, Service& service,
                                         const ListConfigurations& list);

}  // namespace protean
