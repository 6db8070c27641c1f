#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "http/message.h"

namespace protean {

// Which web pages' scripts may read our answers (the Fetch standard's CORS protocol). None, unless
// origins are allowed.
class Cors {
 public:
  Cors() = default;
  // "https://chat.example.org", or "*" for every page.
  static Result<Cors> allow(std::vector<std::string> origins);

  bool admits(std::string_view origin) const;
  // What any response to this call says.
  HttpHeaders headers(const HttpCall& call) const;
  // Turns a reply to OPTIONS that names the methods in Allow into one to a preflight.
  void answer_preflight(const HttpCall& call, HttpReply& reply) const;

 private:
  std::vector<std::string> origins_;
  bool any_ = false;
};

}  // namespace protean
