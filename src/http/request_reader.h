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

// Takes one request off the bytes of a connection; no socket, no clock. What a request says about
// its own framing must be beyond doubt: where a proxy in front of us might read it another way,
// one request could hide in another. So both Content-Length and Transfer-Encoding, bare LF, folded
// lines and the like are errors, after which the connection cannot be used any more.
class RequestReader {
 public:
  explicit RequestReader(const HttpLimits& limits);

  // Takes what it can and says how much that was. The rest is to be given again, with more behind
  // it, unless the request is done by then.
  std::size_t put(std::string_view bytes);

  bool begun() const { return begun_; }
  bool head_done() const { return head_done_; }  // the following are known from then on
  bool done() const { return part_ == Part::kEnd; }
  const std::optional<ApiError>& error() const { return error_; }

  HttpCall call() const;  // without its body and where it came from; made for a bad head too
  bool http_1_1() const { return parser_.get().version() >= 11; }
  bool keep_alive() const { return parser_.get().keep_alive(); }
  bool wants_continue() const { return wants_continue_; }
  std::size_t body_bytes() const { return body_.size(); }
  std::string take_body() { return std::move(body_); }

 private:
  // What comes next. A chunk is a size line, its data and an empty line.
  enum class Part { kHead, kBody, kChunkSize, kChunk, kChunkEnd, kTrailer, kEnd };

  std::size_t put_head(std::string_view bytes);
  std::size_t put_body(std::string_view bytes);
  std::size_t take_data(std::string_view bytes, Part next);
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
  boost::beast::http::request_parser<boost::beast::http::empty_body> parser_;  // the head's
  Part part_ = Part::kHead;
  std::size_t scanned_ = 0;     // bytes of the head that were looked at and are whole lines so far
  int empty_lines_ = 0;         // before the request, that were forgiven
  std::int64_t awaited_ = 0;    // bytes of the body or the chunk that are still to come
  std::int64_t line_room_ = 0;  // for size lines' extensions and trailers together
  std::string line_;            // a line of the body's framing, as far as it has come
  std::string body_;
  bool begun_ = false;
  bool head_done_ = false;
  bool wants_continue_ = false;
  std::optional<ApiError> error_;
};

}  // namespace protean
