#include "http/request_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <charconv>
#include <limits>
#include <system_error>
#include <utility>

namespace protean {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

constexpr int kMostEmptyLines = 8;
constexpr char kTlsHandshake = 0x16;  // a TLS record's type

std::string lower(std::string_view name) {
  std::string text(name);
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

}  // namespace

RequestReader::RequestReader(const HttpLimits& limits)
    : max_header_bytes_(limits.max_header_bytes),
      max_body_bytes_(limits.max_body_bytes),
      // Lets a body pass that comes in one-byte chunks and is a fifth as long as allowed.
      line_room_(limits.max_body_bytes + limits.max_header_bytes) {
  parser_.header_limit(std::numeric_limits<std::uint32_t>::max());  // scan() checks the limit
  parser_.body_limit(boost::none);
}

std::size_t RequestReader::put(std::string_view bytes) {
  std::size_t used = section_ == Section::kHead && !error_ ? put_head(bytes) : 0;
  while (section_ != Section::kHead && !done() && !error_ && used < bytes.size()) {
    used += put_body(bytes.substr(used));
  }
  return used;
}

std::size_t RequestReader::put_head(std::string_view bytes) {
  // Ignores empty lines before a request (RFC 9112 section 2.2).
  std::size_t skipped = 0;
  while (scanned_ == 0 && empty_lines_ < kMostEmptyLines &&
         bytes.substr(skipped).starts_with("\r\n")) {
    skipped += 2;
    ++empty_lines_;
  }
  const std::string_view head = bytes.substr(skipped);
  if (head.empty() || head == "\r") {
    return skipped;
  }
  begun_ = true;
  if (head.front() == kTlsHandshake) {
    fail(400, "this port speaks HTTP without TLS: use http:// instead of https://");
    return skipped;
  }
  std::size_t end = 0;
  error_ = scan(head, end);
  if (error_ || end == 0) {
    return skipped;
  }
  error_code ec;
  const std::size_t used = parser_.put(asio::buffer(head.data(), end), ec);
  if (ec || used != end || !parser_.is_header_done()) {
    fail(400, "the request is not valid HTTP: " + (ec ? ec.message() : "a header line is cut"));
    return skipped + used;
  }
  error_ = refuse_head();
  head_done_ = !error_;
  if (head_done_) {
    begin_body();
  }
  return skipped + end;
}

// Finds the end of the head. Refuses lines that another parser might split differently.
std::optional<ApiError> RequestReader::scan(std::string_view bytes, std::size_t& end) {
  const auto most = static_cast<std::size_t>(max_header_bytes_);
  for (; scanned_ < bytes.size() && end == 0; ++scanned_) {
    const char c = bytes[scanned_];
    const bool after_cr = scanned_ > 0 && bytes[scanned_ - 1] == '\r';
    const bool line_begins = scanned_ > 1 && bytes[scanned_ - 1] == '\n';
    if ((c == '\n') != after_cr) {
      return ApiError{.message = c == '\n' ? "a header line ends in LF without CR"
                                           : "a header holds a CR that is not a line's end"};
    }
    if (line_begins && (c == ' ' || c == '\t')) {
      return ApiError{.message = "a header line begins with a space: folded lines are obsolete"};
    }
    if (c == '\n' && scanned_ >= 3 && bytes.substr(scanned_ - 3, 4) == "\r\n\r\n") {
      end = scanned_ + 1;
    }
  }
  if (end > most || (end == 0 && bytes.size() >= most)) {
    return ApiError{.status = 431,
                    .message = fmt::format("the request's headers exceed {} bytes", most)};
  }
  return std::nullopt;
}

std::optional<ApiError> RequestReader::refuse_head() {
  const auto& message = parser_.get();
  const auto [first, last] = message.equal_range(http::field::transfer_encoding);
  const std::string_view length(message[http::field::content_length]);
  if (message.count(http::field::content_length) > 1 ||
      length.find_first_not_of("0123456789") != std::string_view::npos) {
    return ApiError{.message = "Content-Length must be given once, in digits"};
  }
  if (first != last) {
    if (!http_1_1()) {
      return ApiError{.message = "HTTP/1.0 has no Transfer-Encoding"};
    }
    if (message.count(http::field::content_length) > 0) {
      return ApiError{.message = "Transfer-Encoding and Content-Length exclude each other"};
    }
    if (std::next(first) != last || !beast::iequals(first->value(), "chunked")) {
      return ApiError{.status = 501, .message = "the only Transfer-Encoding supported is chunked"};
    }
  }
  if (http_1_1() && message.count(http::field::host) != 1) {
    return ApiError{.message = "an HTTP/1.1 request must have exactly one Host header"};
  }
  if (const auto expect = message[http::field::expect]; !expect.empty() && http_1_1()) {
    if (!beast::iequals(expect, "100-continue")) {
      return ApiError{.status = 417, .message = "the only Expect supported is 100-continue"};
    }
    wants_continue_ = true;
  }
  return std::nullopt;
}

void RequestReader::begin_body() {
  const auto length = parser_.content_length();
  if (parser_.chunked()) {
    section_ = Section::kChunkSize;
  } else if (!length || *length == 0) {
    section_ = Section::kEnd;
  } else if (*length > static_cast<std::uint64_t>(max_body_bytes_)) {
    fail_too_large();
  } else {
    section_ = Section::kBody;
    awaited_ = static_cast<std::int64_t>(*length);
  }
  wants_continue_ = wants_continue_ && section_ != Section::kEnd;
}

std::size_t RequestReader::put_body(std::string_view bytes) {
  switch (section_) {
    case Section::kBody:
      return take_data(bytes, Section::kEnd);
    case Section::kChunk:
      return take_data(bytes, Section::kChunkEnd);
    default:
      return take_line(bytes);
  }
}

std::size_t RequestReader::take_data(std::string_view bytes, Section next) {
  const std::size_t size = std::min(bytes.size(), static_cast<std::size_t>(awaited_));
  body_.append(bytes.substr(0, size));
  awaited_ -= static_cast<std::int64_t>(size);
  if (awaited_ == 0) {
    section_ = next;
  }
  return size;
}

std::size_t RequestReader::take_line(std::string_view bytes) {
  const std::size_t end = bytes.find('\n');
  const std::size_t size = end == std::string_view::npos ? bytes.size() : end + 1;
  line_.append(bytes.substr(0, size));
  line_room_ -= static_cast<std::int64_t>(size);
  if (std::ssize(line_) > max_header_bytes_) {
    fail(431,
         fmt::format("a chunk's extension or trailer is longer than {} bytes", max_header_bytes_));
  } else if (line_room_ < 0) {
    fail(413, "the framing of the request's chunks exceeds the limit for a body");
  } else if (end != std::string_view::npos) {
    if (!line_.ends_with("\r\n") || line_.find('\r') != line_.size() - 2) {
      fail(400, "a line of the chunked body does not end in CR LF");
    } else {
      line_.resize(line_.size() - 2);
      read_line();
      line_.clear();
    }
  }
  return size;
}

void RequestReader::read_line() {
  if (section_ == Section::kChunkSize) {
    read_chunk_size();
  } else if (section_ == Section::kTrailer) {
    section_ = line_.empty() ? Section::kEnd : Section::kTrailer;  // trailers are ignored
  } else if (line_.empty()) {
    section_ = Section::kChunkSize;
  } else {
    fail(400, "a chunk is longer than its size says");
  }
}

// Reads chunk-size [ ";" extensions ] (RFC 9112 section 7.1).
void RequestReader::read_chunk_size() {
  std::uint64_t size = 0;
  const char* const begin = line_.data();
  const auto [end, failed] = std::from_chars(begin, begin + line_.size(), size, 16);
  const std::string_view rest(end, static_cast<std::size_t>(begin + line_.size() - end));
  const std::size_t extension = std::min(rest.find_first_not_of(" \t"), rest.size());
  const bool well_formed = extension == rest.size() ? extension == 0 : rest[extension] == ';';
  const bool overflow = failed == std::errc::result_out_of_range;
  const auto room = static_cast<std::uint64_t>(max_body_bytes_ - std::ssize(body_));
  if (!overflow && (failed != std::errc() || !well_formed)) {
    fail(400, "the size of a chunk is not a hexadecimal number");
  } else if (overflow || size > room) {
    fail_too_large();
  } else {
    awaited_ = static_cast<std::int64_t>(size);
    section_ = size == 0 ? Section::kTrailer : Section::kChunk;
  }
}

HttpCall RequestReader::call() const {
  const auto& message = parser_.get();
  HttpCall call{
      .method = std::string(std::string_view(message.method_string())),
      .target = std::string(std::string_view(message.target())),
      .authorization = std::string(std::string_view(message[http::field::authorization])),
      .content_encoding = std::string(std::string_view(message[http::field::content_encoding])),
      .request_id = std::string(std::string_view(message["x-request-id"]))};
  for (const auto& field : message) {
    call.headers.emplace_back(lower(std::string_view(field.name_string())),
                              std::string(std::string_view(field.value())));
  }
  return call;
}

void RequestReader::fail(int status, std::string message) {
  error_ = {.status = status, .message = std::move(message)};
}

void RequestReader::fail_too_large() {
  fail(413, fmt::format("the request's body exceeds {} bytes", max_body_bytes_));
}

}  // namespace protean
