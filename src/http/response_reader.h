#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace protean {

// Parses an HTTP/1.1 response from bytes that arrive in any pieces. Does no I/O, so that its caller
// can take the time of bytes before they are parsed.
class ResponseReader {
 public:
  using BodySink = std::function<void(std::string_view bytes)>;
  explicit ResponseReader(BodySink on_body);
  ~ResponseReader();
  ResponseReader(const ResponseReader&) = delete;
  ResponseReader& operator=(const ResponseReader&) = delete;

  // Makes the response end with its header, as one to HEAD or CONNECT does.
  void expect_no_body();

  Status feed(std::string_view bytes);
  // Ends the response because the peer closed the connection. Fails if the response is incomplete;
  // a response without a stated length is complete.
  Status finish();

  bool started() const;  // at least one byte was fed
  bool done() const;
  int status() const;
  bool keep_alive() const;                  // the connection can be used again after done()
  const std::string& content_type() const;  // lower case, without parameters
  // Returns the value of a header field, the last one if it is repeated; empty if there is none.
  // Ignores case.
  std::string_view field(std::string_view name) const;

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
  std::string pending_;  // bytes that the parser cannot consume before more arrive
};

}  // namespace protean
