#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace protean {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// A request as the service sees it: what HTTP says, without HTTP's library.
struct HttpCall {
  std::string method;  // upper case
  std::string target;
  std::string authorization;
  std::string content_encoding;
  std::string request_id;  // x-request-id, the client's or ours
  std::string body;
  HttpHeaders headers = {};  // all, names in lower case
  std::string client = {};   // its address and port

  // The first of that name, in lower case; empty where there is none.
  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) {
        return value;
      }
    }
    return {};
  }
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
};

}  // namespace protean
