#pragma once

#include <boost/json/object.hpp>

#include "http/message.h"

namespace protean {

// Shows an OpenAPI description as a page of HTML without scripts. The page's content security
// policy allows no request at all.
HttpReply docs_page(const boost::json::object& openapi);

}  // namespace protean
