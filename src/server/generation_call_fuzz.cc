#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/generation_call.h"
#include "server/json_body.h"

// Any body gives a call or a complaint: never a crash, and never an empty complaint.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace protean;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Checked<boost::json::value> body = parse_json_body(text);
  if (const ApiError* error = std::get_if<ApiError>(&body)) {
    check(!error->message.empty() && error_json(*error).size() > 40, "a complaint says something");
    return 0;
  }
  for (const auto parse : {parse_chat_call, parse_completion_call}) {
    const Checked<GenerationCall> call = parse(std::get<boost::json::value>(body));
    const ApiError* error = std::get_if<ApiError>(&call);
    check(error == nullptr || !error->message.empty(), "a complaint says something");
  }
  return 0;
}
