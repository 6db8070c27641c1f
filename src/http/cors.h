#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "http/message.h"

namespace protean {

// The web pages whose scripts may read answers (CORS, as in the Fetch standard). By default none.
class Cors {
 public:
  Cors() = default;
  // Allows origins such as "https://chat.example.org"; "*" allows all.
  static Result<Cors> allow(std::vector<std::string> origins);

  bool admits(std::string_view origin) const;
  // Returns the headers that every response to this call carries.
  HttpHeaders headers(const HttpCall& call) const;
  // If the call is a preflight, adds what it asks for to a reply to OPTIONS that has Allow.
  void answer_preflight(const HttpCall& call, HttpReply& reply) const;

 private:
  std::vector<std::string> origins_;
  bool any_ = false;
};

}  // namespace protean
