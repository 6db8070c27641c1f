#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/call/json_body.h"
#include "server/openai/embedding_call.h"
#include "server/openai/openai_answer.h"
#include "server/openai/text_endpoints.h"

// Any body gives a call or an error whose message is not empty.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace protean;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Checked<boost::json::value> body = parse_json_body(text);
  if (const ApiError* error = std::get_if<ApiError>(&body)) {
    check(!error->message.empty() && error_json(*error).size() > 40, "a complaint says something");
    return 0;
  }
  const auto check_complaint = [](const auto& parsed) {
    const ApiError* error = std::get_if<ApiError>(&parsed);
    check(error == nullptr || !error->message.empty(), "a complaint says something");
  };
  const boost::json::value& value = std::get<boost::json::value>(body);
  check_complaint(read_chat_call(value));
  check_complaint(read_completion_call(value));
  check_complaint(read_embedding_call(value));
  check_complaint(read_tokenize_call(value));
  check_complaint(read_detokenize_call(value));
  return 0;
}
