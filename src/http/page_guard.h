#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/api_error.h"
#include "http/cors.h"
#include "http/message.h"

namespace protean {

// Keeps web pages from using a port that needs no key through the browser of a user who can reach
// it. A browser says which site a page is of (Origin) and which host it asks (Host), and scripts
// can change neither. So a call is refused if it comes from another site's page, or if it asks for
// a name that is none of the server's: that name may be a page's own, made to lead here (DNS
// rebinding). Addresses cannot be rebound, so every address is a name of the server, and so is
// localhost.
class PageGuard {
 public:
  struct Setting {
    Cors origins;                            // origins of the pages that may call
    std::vector<std::string> names;          // names of the server; "*": any
    std::string remedy;                      // the flags that admit more, for messages
    std::vector<std::string> any_name = {};  // paths that are answered under any name
  };
  PageGuard() = default;  // admits all: the port needs a key
  explicit PageGuard(Setting setting);

  std::optional<ApiError> refuse(const HttpCall& call) const;

 private:
  bool knows(std::string_view host) const;

  std::optional<Setting> setting_;
};

// True for "localhost" and for addresses that only this machine can reach.
bool is_loopback(const std::string& host);

// Returns the host of a Host header, without its port and the brackets of an IPv6 address.
std::string_view host_of(std::string_view header);

}  // namespace protean
