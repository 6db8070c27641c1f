#include <boost/json/parse.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/anthropic/messages_call.h"
#include "server/call/json_body.h"
#include "server/llama/llama_call.h"
#include "server/ollama/ollama_call.h"
#include "server/openai/score_call.h"
#include "server/responses/responses_call.h"
#include "server/test_scenes/byte_tokenizer_for_test.h"

namespace {

using namespace protean;

// An accepted body has messages with roles, and its answer is valid JSON. A refused body gets an
// error whose message is not empty.
void try_dialect(const boost::json::value& body, ParseDialect parse) {
  const Checked<DialectCall> read = parse(body);
  if (const ApiError* error = std::get_if<ApiError>(&read)) {
    check(!error->message.empty() && error->status == 400, "a complaint says something");
    return;
  }
  const DialectCall& dialect = std::get<DialectCall>(read);
  const ChatInput& chat = std::get<ChatInput>(dialect.call.input);
  check(!chat.messages.empty(), "there is something to answer");
  for (const boost::json::value& message : chat.messages) {
    check(message.at("role").is_string(), "a message has a role");
  }
  const ByteTokenizer tokenizer;
  const auto writer = dialect.make_writer({.id = "x_1", .model = "m"}, tokenizer);
  const AnswerChoice choice{.pieces = {{.parts = {ContentPiece{"a\"b"}, CallBegin{0, "c", "f"},
                                                  ArgumentsPiece{0, "{"}}}}};
  boost::system::error_code ec;
  boost::json::parse(writer->whole({{choice}}, {}), ec, {}, {.max_depth = 128});
  check(!ec, "an answer is JSON");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Checked<boost::json::value> body = parse_json_body(text);
  if (const boost::json::value* value = std::get_if<boost::json::value>(&body)) {
    try_dialect(*value, read_messages_call);
    try_dialect(*value, read_responses_call);
    try_dialect(*value, read_ollama_chat);
    read_messages_count(*value);
    read_ollama_generate(*value);
    read_ollama_embed(*value);
    read_llama_completion(*value);
    read_llama_infill(*value);
    read_score_call(*value);
    read_rerank_call(*value);
    (void)read_ollama_load(text, 0);
  }
  return 0;
}
