#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "http/message.h"

namespace protean {

// Why a request cannot be served: an HTTP status and OpenAI's error fields. All fields are always
// sent, so that no SDK meets a missing key.
struct ApiError {
  int status = 400;
  std::string message;
  std::string param;      // the field at fault; empty is sent as null
  std::string code;       // for programs; empty is sent as the status's general code
  int retry_after_s = 1;  // sent with 429 and 503
};

// A value read from a request, or why the request is refused.
template <class T>
using Checked = std::variant<T, ApiError>;

// The API whose clients read the error:
//   OpenAI     {"error":{"message":...,"type":...,"param":...,"code":...}}
//   Anthropic  {"type":"error","error":{"type":...,"message":...},"request_id":...}
//   Ollama     {"error":...}
enum class ErrorStyle : std::uint8_t { kOpenAi, kAnthropic, kOllama };
std::string error_json(const ApiError& error, ErrorStyle style = ErrorStyle::kOpenAi,
                       std::string_view request_id = {});

// Makes the reply that carries the error. Adds Retry-After if the same request may succeed later.
HttpReply error_reply(const ApiError& error, ErrorStyle style = ErrorStyle::kOpenAi,
                      std::string_view request_id = {});

// Returns the message of a reply that error_reply() made in the style of OpenAI.
std::string error_message(const HttpReply& reply);

// Cuts text of a client to at most 64 bytes of whole UTF-8 characters, for messages.
std::string excerpt(std::string_view text);

// Like excerpt(), with every byte other than visible ASCII replaced by '?'. For header lines and
// paths, which may hold any bytes.
std::string printable(std::string_view text);

ApiError no_memory();

// Translates an error of the engine or of a library.
ApiError to_api_error(const Error& error);

}  // namespace protean
