#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace protean::loadtest {

// An HTTP/1.1 response from bytes that arrive in any pieces. Knows no socket, so that the time of a
// byte can be taken before anything is done with it.
class ResponseReader {
 public:
  using BodySink = std::function<void(std::string_view bytes)>;
  explicit ResponseReader(BodySink on_body);
  ~ResponseReader();
  ResponseReader(const ResponseReader&) = delete;
  ResponseReader& operator=(const ResponseReader&) = delete;

  Status feed(std::string_view bytes);
  // The peer closed. An answer that has no length ends so; any other is cut.
  Status finish();

  bool started() const;  // a byte of it has been read
  bool has_header() const;
  bool done() const;
  int status() const;
  bool keep_alive() const;                  // the connection may be used again, once done
  const std::string& content_type() const;  // lower case, without parameters

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
  std::string pending_;  // what the parser wants more of before it takes it
};

}  // namespace protean::loadtest
