#pragma once

#include <string>
#include <utility>
#include <vector>

namespace protean {

// A request as the service sees it: what HTTP says, without HTTP's library.
struct HttpCall {
  std::string method;  // upper case
  std::string target;
  std::string authorization;
  std::string content_encoding;
  std::string request_id;  // x-request-id, the client's or ours
  std::string body;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

}  // namespace protean
