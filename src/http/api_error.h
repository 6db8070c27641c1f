#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "http/message.h"

namespace protean {

// What a client is told when its request cannot be served: an HTTP status and OpenAI's four fields,
// always all of them, so that no SDK meets a missing key.
struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // the field at fault; empty becomes null
  std::string code;   // for programs; empty becomes a general one for the status
};

// A T, or why a client's request does not give one.
template <class T>
using Checked = std::variant<T, ApiError>;

// Who reads the error: OpenAI's {"error":{"message":...,"type":...,"param":...,"code":...}} or
// Anthropic's {"type":"error","error":{"type":...,"message":...},"request_id":...}.
enum class ErrorStyle : std::uint8_t { kOpenAi, kAnthropic };
std::string error_json(const ApiError& error, ErrorStyle style = ErrorStyle::kOpenAi,
                       std::string_view request_id = {});

// {"error":...} with its status, and Retry-After where trying again makes sense.
HttpReply error_reply(const ApiError& error, ErrorStyle style = ErrorStyle::kOpenAi,
                      std::string_view request_id = {});

// What a client wrote, short enough to be repeated in a message: 64 bytes, no character cut in two.
std::string excerpt(std::string_view text);

// The same of header lines and paths, which need not be UTF-8 as our JSON must be.
std::string printable(std::string_view text);

ApiError no_memory();

// What the engine or a library said, as a client may see it.
ApiError to_api_error(const Error& error);

}  // namespace protean
