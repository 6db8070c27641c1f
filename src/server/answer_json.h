#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/ids.h"

namespace protean {

// What all JSON of one answer repeats.
struct AnswerIdentity {
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::string model;
  std::string fingerprint;
  std::int64_t created_s = 0;  // Unix time
  bool chat = false;
};

struct AnswerUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::optional<std::int64_t> cached_tokens;  // known at the end
};

// Why a choice ended. stop_reason is the stop string or the client's own stop token, else null.
struct ChoiceEnd {
  std::string_view finish_reason;
  std::variant<std::monostate, std::string, TokenId> stop_reason;
};

struct FinishedChoice {
  std::string text;
  ChoiceEnd end;
};

std::string usage_json(const AnswerUsage& usage);

// {"object":"chat.completion",...} with all choices, by index.
std::string whole_answer_json(const AnswerIdentity& identity,
                              std::span<const FinishedChoice> choices, const AnswerUsage& usage);

// Server-sent events of one answer, "data: {...}\n\n" each. The parts that never change are
// serialised once, as there is an event per token. `usage` is the JSON of that field, empty to
// leave it out.
class ChunkWriter {
 public:
  explicit ChunkWriter(const AnswerIdentity& identity);

  std::string role(int choice, std::string_view usage) const;  // chat's first chunk
  std::string text(int choice, std::string_view text, std::string_view usage) const;
  std::string end(int choice, const ChoiceEnd& end, std::string_view usage) const;
  std::string usage(std::string_view usage) const;  // with no choices

 private:
  std::string chunk(std::string_view choices, std::string_view usage) const;

  bool chat_;
  std::string head_;  // up to where choices begin
};

inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
std::string sse_event(std::string_view json);

}  // namespace protean
