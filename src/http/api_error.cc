#include "http/api_error.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

namespace protean {
namespace {

namespace json = boost::json;

struct Kind {
  std::string_view type;
  std::string_view code;
};

Kind kind_of(int status) {
  switch (status) {
    case 401:
      return {"authentication_error", "invalid_api_key"};
    case 403:
      return {"permission_error", "forbidden"};
    case 404:
      return {"not_found_error", "not_found"};
    case 405:
      return {"invalid_request_error", "method_not_allowed"};
    case 408:
      return {"invalid_request_error", "request_timeout"};
    case 413:
      return {"invalid_request_error", "request_too_large"};
    case 415:
      return {"invalid_request_error", "unsupported_media_type"};
    case 417:
      return {"invalid_request_error", "expectation_failed"};
    case 429:
      return {"rate_limit_error", "queue_full"};
    case 431:
      return {"invalid_request_error", "headers_too_large"};
    case 501:
      return {"invalid_request_error", "not_implemented"};
    case 503:
      return {"unavailable_error", "unavailable"};
    case 504:
      return {"timeout_error", "timeout"};
    default:
      return status >= 500 ? Kind{"server_error", "internal_error"}
                           : Kind{"invalid_request_error", "invalid_request"};
  }
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kExhausted:
      return 429;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kCorrupt:
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

}  // namespace

std::string error_json(const ApiError& error, ErrorStyle style, std::string_view request_id) {
  if (style == ErrorStyle::kAnthropic) {
    return json::serialize(json::object{
        {"type", "error"},
        {"error", {{"type", anthropic_type(error.status)}, {"message", error.message}}},
        {"request_id", request_id.empty() ? json::value(nullptr) : json::value(request_id)}});
  }
  if (style == ErrorStyle::kOllama) {
    return json::serialize(json::object{{"error", error.message}});
  }
  const Kind kind = kind_of(error.status);
  json::object fields;
  fields["message"] = error.message;
  fields["type"] = kind.type;
  fields["param"] = error.param.empty() ? json::value(nullptr) : json::value(error.param);
  fields["code"] = error.code.empty() ? kind.code : std::string_view(error.code);
  json::object body;
  body["error"] = std::move(fields);
  return json::serialize(body);
}

HttpReply error_reply(const ApiError& error, ErrorStyle style, std::string_view request_id) {
  HttpReply reply{.status = error.status, .body = error_json(error, style, request_id)};
  if (error.status == 429 || error.status == 503) {
    reply.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  if (error.status == 401) {
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  return reply;
}

std::string error_message(const HttpReply& reply) {
  return std::string(json::parse(reply.body).at("error").at("message").as_string());
}

std::string excerpt(std::string_view text) {
  constexpr std::size_t kLongest = 64;
  if (text.size() <= kLongest) {
    return std::string(text);
  }
  std::size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end;
  }
  return std::string(text.substr(0, end)) + "...";
}

std::string printable(std::string_view text) {
  std::string shown = excerpt(text);
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

ApiError no_memory() {
  return {.status = 503,
          .message =
              "the server has not enough memory for this request now: try a smaller one, or "
              "later"};
}

ApiError to_api_error(const Error& error) {
  return {.status = status_of(error.code), .message = error.message};
}

}  // namespace protean
