#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace protean {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// An HTTP request, independent of the library that parsed it.
struct HttpCall {
  std::string method;  // upper case
  std::string target;
  std::string authorization;
  std::string content_encoding;
  std::string request_id;  // x-request-id of the client, or a random one
  std::string body;
  HttpHeaders headers = {};  // names in lower case
  std::string client = {};   // address and port

  // Returns the first header of that name (in lower case); empty if there is none.
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
