#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "http/api_error.h"
#include "http/growing_answer.h"
#include "http/message.h"

namespace protean {

// What comes later, a reply or an answer that grows: one of them is set and on_ready called, on the
// io thread.
struct PendingReply {
  std::optional<HttpReply> reply;
  std::shared_ptr<GrowingAnswer> answer;
  std::function<void()> on_ready;
};

// What stands behind a listening port. All calls come from the io thread.
class HttpHandler {
 public:
  using Answer =
      std::variant<HttpReply, std::shared_ptr<PendingReply>, std::shared_ptr<GrowingAnswer>>;

  virtual ~HttpHandler() = default;

  // A reply to what needs no body to be judged: unknown path, wrong method or key, not ready.
  virtual std::optional<HttpReply> refuse_early(const HttpCall& call) const = 0;
  // The answer to a call that refuse_early let pass, or a reply or answer to wait for.
  virtual Answer handle(const HttpCall& call) = 0;
  // How the client of this call expects errors to be written.
  virtual ErrorStyle error_style(const HttpCall& call) const = 0;
  // True for calls that come often and say little, such as health checks: logged at debug level.
  virtual bool routine(const HttpCall& call) const = 0;
  // To be called once per response that was sent.
  virtual void count(const HttpCall& call, int status) = 0;
  // From now on each answer is the last of its connection.
  virtual bool draining() const = 0;
};

}  // namespace protean
