#include "http/response_reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/none.hpp>
#include <cctype>
#include <utility>
#include <vector>

namespace protean {

namespace http = boost::beast::http;
using boost::system::error_code;

class ResponseReader::Parser : public http::basic_parser<false> {
 public:
  explicit Parser(BodySink on_body) : on_body_(std::move(on_body)) {
    eager(true);
    body_limit(boost::none);
    header_limit(64 * 1024);
  }

  int status() const { return status_; }
  const std::string& content_type() const { return content_type_; }
  std::string_view field(std::string_view name) const {
    const auto found = std::find_if(fields_.rbegin(), fields_.rend(), [&](const auto& field) {
      return boost::beast::iequals(field.first, name);
    });
    return found == fields_.rend() ? std::string_view() : found->second;
  }

 private:
  using View = boost::beast::string_view;

  void on_request_impl(http::verb, View, View, int, error_code&) override {}
  void on_response_impl(int code, View, int, error_code&) override { status_ = code; }
  void on_field_impl(http::field name, View text, View value, error_code&) override {
    fields_.emplace_back(text, value);
    if (name == http::field::content_type) {
      content_type_.clear();
      for (const char c : std::string_view(value.data(), std::min(value.size(), value.find(';')))) {
        content_type_ += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      }
    }
  }
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(View body, error_code&) override {
    on_body_({body.data(), body.size()});
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t, View, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, View body, error_code&) override {
    on_body_({body.data(), body.size()});
    return body.size();
  }
  void on_finish_impl(error_code&) override {}

  BodySink on_body_;
  int status_ = 0;
  std::string content_type_;
  std::vector<std::pair<std::string, std::string>> fields_;
};

namespace {

Error broken(const error_code& why) {
  return make_error(ErrorCode::kCorrupt, "invalid HTTP response: {}", why.message());
}

}  // namespace

ResponseReader::ResponseReader(BodySink on_body)
    : parser_(std::make_unique<Parser>(std::move(on_body))) {}
ResponseReader::~ResponseReader() = default;

void ResponseReader::expect_no_body() {
  parser_->skip(true);
}

Status ResponseReader::feed(std::string_view bytes) {
  if (!pending_.empty()) {
    // Beast expects that the last chunk, if it was incomplete, is fed again with at least 5 bytes,
    // and no response can end with fewer.
    constexpr std::size_t kLeastBytes = 5;
    pending_ += bytes;
    if (pending_.size() < kLeastBytes) {
      return {};
    }
    bytes = pending_;
  }
  while (!bytes.empty() && !parser_->is_done()) {
    error_code failed;
    const std::size_t used =
        parser_->put(boost::asio::const_buffer(bytes.data(), bytes.size()), failed);
    bytes.remove_prefix(used);
    if (failed == http::error::need_more) {
      break;
    }
    if (failed) {
      return broken(failed);
    }
  }
  if (parser_->is_done() && !bytes.empty()) {
    return make_error(ErrorCode::kCorrupt, "{} bytes follow the end of the HTTP response",
                      bytes.size());
  }
  constexpr std::size_t kMostPending = 128 * 1024;  // a header has at most 64 KiB
  if (bytes.size() > kMostPending) {
    return make_error(ErrorCode::kCorrupt, "a line of the HTTP response is longer than 128 KiB");
  }
  pending_ = std::string(bytes);
  return {};
}

Status ResponseReader::finish() {
  if (!pending_.empty()) {
    return make_error(ErrorCode::kCorrupt, "the connection closed in the middle of the response");
  }
  error_code failed;
  if (!parser_->is_done()) {
    parser_->put_eof(failed);
  }
  if (failed || !parser_->is_done()) {
    return make_error(ErrorCode::kCorrupt, "the connection closed in the middle of the response");
  }
  return {};
}

bool ResponseReader::started() const {
  return parser_->got_some() || !pending_.empty();
}
bool ResponseReader::done() const {
  return parser_->is_done();
}
int ResponseReader::status() const {
  return parser_->status();
}
bool ResponseReader::keep_alive() const {
  return parser_->keep_alive();
}
const std::string& ResponseReader::content_type() const {
  return parser_->content_type();
}
std::string_view ResponseReader::field(std::string_view name) const {
  return parser_->field(name);
}

}  // namespace protean
