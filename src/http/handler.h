#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "http/api_error.h"
#include "http/growing_answer.h"
#include "http/message.h"

namespace protean {

// A reply or an answer that comes later. On the io thread, one of the two is set and on_ready is
// called.
struct PendingReply {
  std::shared_ptr<const void> owner;  // what the others refer to, destroyed last; may be null
  std::optional<HttpReply> reply;
  std::shared_ptr<GrowingAnswer> answer;
  std::function<void()> on_ready;
};

// Answers the calls of a listening port. Called from the io thread only.
class HttpHandler {
 public:
  using Answer =
      std::variant<HttpReply, std::shared_ptr<PendingReply>, std::shared_ptr<GrowingAnswer>>;

  virtual ~HttpHandler() = default;

  // Returns a reply if the call can be refused without its body: unknown path, wrong method, wrong
  // key, server not ready.
  virtual std::optional<HttpReply> refuse_early(const HttpCall& call) const = 0;
  // Answers a call that refuse_early() let pass, at once or later.
  virtual Answer handle(const HttpCall& call) = 0;
  // The form in which the client of this call reads errors.
  virtual ErrorStyle error_style(const HttpCall& call) const = 0;
  // Returns true if the answer with this status is to be logged at debug level: for frequent calls,
  // such as health checks, that succeed.
  virtual bool routine(const HttpCall& call, int status) const = 0;
  // Called once per response.
  virtual void count(const HttpCall& call, int status) = 0;
  // True if connections are to be closed after their present answer.
  virtual bool draining() const = 0;
};

}  // namespace protean
