#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/api_error.h"

namespace protean {

// The status that logs show for a request whose client left before its answer (nginx's 499).
inline constexpr int kClientGone = 499;

// An answer that is made while its client waits: server-sent events if it is streamed, else one
// body at the end. A connection takes from it on the io thread, and sends nothing before started(),
// since a refusal still needs its status.
class GrowingAnswer {
 public:
  virtual ~GrowingAnswer() = default;

  virtual const std::string& id() const = 0;
  virtual bool streaming() const = 0;
  // The Content-Type of a streamed answer.
  virtual std::string_view stream_type() const { return "text/event-stream; charset=utf-8"; }
  virtual bool started() const = 0;
  virtual bool done() const = 0;
  virtual const std::optional<ApiError>& failure() const = 0;
  // The form in which the client reads errors.
  virtual ErrorStyle errors() const = 0;
  // Bytes of generated text that wait to be taken. Events that are sent once, such as a copy of the
  // request, do not count.
  virtual std::size_t unsent_bytes() const = 0;
  // Returns the events since the last call, if the answer is streamed.
  virtual std::string take_events() = 0;
  // Returns the body of an answer that is not streamed, is done and has not failed.
  virtual std::string take_body() = 0;
  // Returns what to send between events to a client that has waited long; empty: nothing.
  virtual std::string keep_alive() const = 0;
  // Ends the answer because its client has left. Does nothing if the answer is done.
  virtual void abandon() = 0;

  std::function<void()> on_change;    // called when the above may have changed
  std::shared_ptr<const void> owner;  // what the answer refers to; may be null
};

}  // namespace protean
