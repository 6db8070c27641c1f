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

// Fields that every event of an answer repeats.
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
  std::vector<TokensAt> output_at;
  RequestTimes times;  // times of the choice that ended last; known at the end
};

// Why a choice ended. stop_reason holds the stop string or the client's stop token that ended it.
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

// What an answer repeats of one choice's prompt.
struct AnswerPrompt {
  std::string echo;
  std::vector<AnswerToken> tokens;  // if the call asks for tokens or logprobs
};

// What one step added to a choice. Without parts, the step ended inside a character, or in text
// that may become a stop string or a tool call.
struct AnswerPiece {
  std::vector<ToolPiece> parts;     // in order; a CallBegin has its id
  std::vector<AnswerToken> tokens;  // the sampled ones, if the call asks for tokens or logprobs
};

const std::string& text_of(const ToolPiece& part);  // empty for a CallBegin

// A finished choice.
struct AnswerChoice {
  AnswerPrompt prompt;
  std::vector<AnswerPiece> pieces;  // in order; adjacent texts are joined
  std::vector<float> embedding;     // if the call asks for one
  ChoiceEnd end;
};

struct AnswerCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text
};
// A finished choice as text, calls and tokens, without the order among them.
struct SortedAnswer {
  std::string text;  // without the echo
  std::vector<AnswerCall> calls;
  std::vector<AnswerToken> tokens;
};
SortedAnswer sorted(const AnswerChoice& choice);

// True if the arguments are a complete JSON object. The end of an answer may cut them off.
bool is_whole(std::string_view arguments);

// Writes one answer in one dialect of the HTTP API. A Generation calls it in the order begin(); for
// each choice prompt() (if the answer repeats something of it), piece() and end_choice(); end(). An
// error() may follow begin() at any time. An answer that is not streamed calls whole() alone. The
// other functions return whole events of the dialect's stream, or nothing. There is one writer for
// each answer, so it may keep state.
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

  // Returns the body of an answer that is not streamed. Choices are in the order of their index.
  virtual std::string whole(std::span<const AnswerChoice> choices, const AnswerUsage& usage) = 0;

  virtual std::string_view stream_type() const { return "text/event-stream; charset=utf-8"; }
  virtual ErrorStyle errors() const { return ErrorStyle::kOpenAi; }
  virtual std::string_view call_id_prefix() const { return "call_"; }
};

// What a dialect read from a body: the call, and how to make the writer of its answer. The
// tokenizer outlives the writer.
struct DialectCall {
  GenerationCall call;
  std::string_view id_prefix;  // "chatcmpl-"
  std::function<std::unique_ptr<AnswerWriter>(const AnswerIdentity&, const Tokenizer&)> make_writer;
};
using ParseDialect = Checked<DialectCall> (*)(boost::json::value body);

}  // namespace protean
