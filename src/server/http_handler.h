#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "server/api_error.h"
#include "server/generation.h"
#include "server/http_message.h"

namespace protean {

// What comes later, a reply or a generation: whoever has it sets one of them and calls on_ready, on
// the io thread.
struct PendingReply {
  std::optional<HttpReply> reply;
  std::shared_ptr<Generation> generation;
  std::function<void()> on_ready;
};

// What stands behind a listening port. All calls come from the io thread.
class HttpHandler {
 public:
  using Answer =
      std::variant<HttpReply, std::shared_ptr<PendingReply>, std::shared_ptr<Generation>>;

  virtual ~HttpHandler() = default;

  // A reply to what needs no body to be judged: unknown path, wrong method or key, not ready.
  virtual std::optional<HttpReply> refuse_early(const HttpCall& call) const = 0;
  // The answer to a call that refuse_early let pass, or a reply or generation to wait for.
  virtual Answer handle(const HttpCall& call) = 0;
  // The client is gone, or its time is up.
  virtual void cancel(Generation& generation, ApiError why) = 0;
  // To be called once per response that was sent.
  virtual void count(const HttpCall& call, int status) = 0;
  // From now on each answer is the last of its connection.
  virtual bool draining() const = 0;
};

}  // namespace protean
