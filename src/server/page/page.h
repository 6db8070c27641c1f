#pragma once

#include <optional>
#include <string_view>

#include "http/message.h"

namespace protean {

// The web pages. Each port has one: the public port the chat, the operators' port the dashboard.
enum class Page { kChat, kDashboard };

// Answers GET and HEAD of a page's file: compressed if the client takes gzip, 304 if the client has
// it. The page itself is "", its other files are "assets/NAME". Sends a content security policy
// that allows the files of this server only. Returns nothing if the page has no such file, or if
// the program was built without pages.
std::optional<HttpReply> page_reply(Page page, std::string_view file, const HttpCall& call);

}  // namespace protean
