#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "chat/tool_calls.h"
#include "contract/request.h"
#include "http/api_error.h"
#include "server/call/generation_call.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// What all of one answer repeats.
struct AnswerIdentity {
  std::string id;  // with the dialect's prefix: "chatcmpl-..."
  std::string model;
  std::string fingerprint;
  std::int64_t created_s = 0;  // Unix time
};

struct AnswerUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::optional<std::int64_t> cached_tokens;  // known at the end
  std::vector<TokensAt> output_at;            // known at the end
};

// Why a choice ended. stop_reason is the stop string or the client's own stop token, if it was one.
enum class EndReason : std::uint8_t { kStop, kLength, kToolCalls };
std::string_view to_string(EndReason reason);  // "stop", "length", "tool_calls"
struct ChoiceEnd {
  EndReason reason = EndReason::kStop;
  std::variant<std::monostate, std::string, TokenId> stop_reason;
};

struct AnswerToken {
  TokenId token = 0;
  std::optional<TokenLogprobs> logprobs;
};

// What is told of one choice's prompt.
struct AnswerPrompt {
  std::string echo;
  std::vector<AnswerToken> tokens;  // where the call wants to know of tokens
};

// What a step brought one choice. No parts: the step ended inside a character, or in text that may
// yet be a stop string or a tool call.
struct AnswerPiece {
  std::vector<ToolPiece> parts;     // in order; a CallBegin has its id by now
  std::vector<AnswerToken> tokens;  // that were drawn, where the call wants to know of tokens
};

const std::string& text_of(const ToolPiece& part);  // empty of a CallBegin

// One choice, finished.
struct AnswerChoice {
  AnswerPrompt prompt;
  std::vector<AnswerPiece> pieces;  // in order, as few as say the same
  std::vector<float> embedding;     // where that was asked for
  ChoiceEnd end;
};

// The same for those who tell texts, calls and tokens apart and not their order.
struct AnswerCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text
};
struct SortedAnswer {
  std::string text;  // without the echo
  std::vector<AnswerCall> calls;
  std::vector<AnswerToken> tokens;
};
SortedAnswer sorted(const AnswerChoice& choice);

// Are they a JSON object? Not where the answer's end cut them off.
bool is_whole(std::string_view arguments);

// How one dialect of HTTP API writes one answer. Fed by a Generation, in the order begin, then of
// each choice its prompt (where something is told of it), pieces and end, then end; or error after
// begin; or whole alone. What the streaming ones return is sent at once: whole server-sent events,
// or nothing. One per answer, so it may keep state.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  virtual std::string begin(const AnswerUsage& so_far) = 0;
  virtual std::string prompt(int /*choice*/, const AnswerPrompt& /*prompt*/,
                             const AnswerUsage& /*so_far*/) {
    return {};
  }
  virtual std::string piece(int choice, const AnswerPiece& piece, const AnswerUsage& so_far) = 0;
  virtual std::string end_choice(int choice, const ChoiceEnd& end, const AnswerUsage& so_far) = 0;
  virtual std::string end(const AnswerUsage& usage) = 0;
  virtual std::string error(const ApiError& error) = 0;
  virtual std::string keep_alive() const { return ": ping\n\n"; }

  // Not streaming: the body with all choices, by index.
  virtual std::string whole(std::span<const AnswerChoice> choices, const AnswerUsage& usage) = 0;

  virtual ErrorStyle errors() const { return ErrorStyle::kOpenAi; }
  virtual std::string_view call_id_prefix() const { return "call_"; }
};

// A body as its dialect understood it: what to generate, and who will write the answer. The
// tokenizer outlives the writer.
struct DialectCall {
  GenerationCall call;
  std::string_view id_prefix;  // "chatcmpl-"
  std::function<std::unique_ptr<AnswerWriter>(const AnswerIdentity&, const Tokenizer&)> make_writer;
};
using ParseDialect = Checked<DialectCall> (*)(boost::json::value body);

}  // namespace protean
