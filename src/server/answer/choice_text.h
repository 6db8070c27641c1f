#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chat/tool_calls.h"
#include "server/answer/served_model.h"
#include "server/answer/stream_text.h"
#include "server/call/generation_call.h"

namespace protean {

// How tokens become text and tool calls. All choices of an answer share it.
struct TextRules {
  StopMatcher stops;
  ShownTokens shown;
  std::int64_t min_tokens = 0;                 // stop strings are ignored before
  ToolFormat tool_format = ToolFormat::kNone;  // kNone: text is not searched for tool calls
  std::vector<OfferedTool> tools;
  bool several_calls = true;
};
TextRules text_rules(const GenerationCall& call, const ServedModel& model);

// Turns the tokens of one choice into whole characters up to the first stop string, split into
// content and tool calls. Makes ids of calls from `nonce`.
class ChoiceText {
 public:
  struct Ids {
    std::string_view prefix;  // "call_"
    std::uint64_t nonce = 0;  // different for each choice
  };
  ChoiceText(const TextRules& rules, const Tokenizer& tokenizer, const PreparedChoice& choice,
             Ids ids);

  // Appends what has become certain to `parts`, joined to adjacent text there.
  void push(TokenId token, std::vector<ToolPiece>& parts);
  // Appends the rest. `cut_off`: the length limit ended the answer.
  void finish(std::vector<ToolPiece>& parts, bool cut_off);

  // True if no more text will come.
  bool ended() const { return text_.stopped_by() || one_call_done_; }
  const std::optional<std::string>& stopped_by() const { return text_.stopped_by(); }
  // True if there are calls and each is complete.
  bool called() const { return calls_ > 0 && (one_call_done_ || !parser_->in_call()); }

 private:
  void take(const std::string& text, std::vector<ToolPiece>& parts);
  void take(std::vector<ToolPiece> found, std::vector<ToolPiece>& parts);
  std::string new_id(int index) const;

  StreamText text_;
  std::optional<ToolCallParser> parser_;
  const Ids ids_;
  const bool short_ids_;  // ids have nine letters and digits, as Mistral's templates require
  const bool several_;
  std::int64_t unstopped_;  // tokens left during which stop strings are ignored
  int calls_ = 0;
  bool one_call_done_ = false;
};

}  // namespace protean
