#pragma once

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "http/api_error.h"
#include "http/limits.h"
#include "http/message.h"

namespace protean {

// Reads one request from the bytes of a connection; has no socket and no clock. Framing that a
// proxy in front of the server might read differently is an error, since one request could then
// hide in another: both Content-Length and Transfer-Encoding, bare LF, folded lines. After an error
// the connection cannot be used any more.
class RequestReader {
 public:
  explicit RequestReader(const HttpLimits& limits);

  // Consumes a prefix of `bytes` and returns its length. Unless the request is done, the caller
  // gives the rest again with more bytes behind it.
  std::size_t put(std::string_view bytes);

  bool begun() const { return begun_; }
  bool head_done() const { return head_done_; }  // the accessors below are valid from then on
  bool done() const { return section_ == Section::kEnd; }
  const std::optional<ApiError>& error() const { return error_; }

  // Returns the request without its body and client. Works for a head with errors too.
  HttpCall call() const;
  bool http_1_1() const { return parser_.get().version() >= 11; }
  bool keep_alive() const { return parser_.get().keep_alive(); }
  bool wants_continue() const { return wants_continue_; }
  std::size_t body_bytes() const { return body_.size(); }
  std::string take_body() { return std::move(body_); }

 private:
  // What is read next. A chunk is a size line, data and an empty line.
  enum class Section { kHead, kBody, kChunkSize, kChunk, kChunkEnd, kTrailer, kEnd };

  std::size_t put_head(std::string_view bytes);
  std::size_t put_body(std::string_view bytes);
  std::size_t take_data(std::string_view bytes, Section next);
  std::size_t take_line(std::string_view bytes);
  void read_line();
  void read_chunk_size();
  std::optional<ApiError> scan(std::string_view bytes, std::size_t& end);
  std::optional<ApiError> refuse_head();
  void begin_body();
  void fail(int status, std::string message);
  void fail_too_large();

  const std::int64_t max_header_bytes_;
  const std::int64_t max_body_bytes_;
  boost::beast::http::request_parser<boost::beast::http::empty_body> parser_;  // parses the head
  Section section_ = Section::kHead;
  std::size_t scanned_ = 0;     // bytes of the head that scan() has checked
  int empty_lines_ = 0;         // ignored before the request
  std::int64_t awaited_ = 0;    // bytes of the body or the chunk that have not arrived
  std::int64_t line_room_ = 0;  // bytes left for chunk extensions and trailers together
  std::string line_;            // the present line of the body's framing
  std::string body_;
  bool begun_ = false;
  bool head_done_ = false;
  bool wants_continue_ = false;
  std::optional<ApiError> error_;
};

}  // namespace protean
