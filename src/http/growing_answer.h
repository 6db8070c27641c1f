#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "http/api_error.h"

namespace protean {

// The status, customary in logs, of a request whose client left before the answer.
inline constexpr int kClientGone = 499;

// An answer that is made while its client waits: server-sent events as they come when streaming,
// else one body at the end. A connection empties it on the io thread. Nothing may be sent before
// started(): a refusal still needs its status.
class GrowingAnswer {
 public:
  virtual ~GrowingAnswer() = default;

  virtual const std::string& id() const = 0;
  virtual bool streaming() const = 0;
  virtual bool started() const = 0;
  virtual bool done() const = 0;
  virtual const std::optional<ApiError>& failure() const = 0;
  // How the client expects errors to be written.
  virtual ErrorStyle errors() const = 0;
  // The size of the answer's pieces that wait to be taken. What is told once, such as a request
  // that is repeated, is as long as it must be and does not count.
  virtual std::size_t unsent_bytes() const = 0;
  // Streaming: returns the events since the last call.
  virtual std::string take_events() = 0;
  // Not streaming: returns the body of an answer that is done and has not failed.
  virtual std::string take_body() = 0;
  // Returns what may be sent to a streaming client that has waited long, between events.
  virtual std::string keep_alive() const = 0;
  // Ends the answer: its client has left, and nothing more will be taken. Does nothing if the
  // answer is done.
  virtual void abandon() = 0;

  std::function<void()> on_change;  // called when one of these may have changed
};

}  // namespace protean
