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

// How an answer's tokens become its text and its tool calls; shared by all choices of the answer.
struct TextRules {
  StopMatcher stops;
  ShownTokens shown;
  std::int64_t min_tokens = 0;                 // no stop string is looked for before
  ToolFormat tool_format = ToolFormat::kNone;  // kNone: there are no calls to find
  std::vector<OfferedTool> tools;
  bool several_calls = true;
};
TextRules text_rules(const GenerationCall& call, const ServedModel& model);

// One choice's text as it grows: whole characters up to the first stop string, split into content
// and tool calls. Ids of calls are made here, from `nonce`.
class ChoiceText {
 public:
  struct Ids {
    std::string_view prefix;  // "call_"
    std::uint64_t nonce = 0;  // another one for each choice
  };
  ChoiceText(const TextRules& rules, const Tokenizer& tokenizer, const PreparedChoice& choice,
             Ids ids);

  // Appends what is now sure to `parts`, joined to what is there.
  void push(TokenId token, std::vector<ToolPiece>& parts);
  // cut_off: there would have been more.
  void finish(std::vector<ToolPiece>& parts, bool cut_off);

  bool ended() const { return text_.stopped_by() || one_call_done_; }  // nothing more will come
  const std::optional<std::string>& stopped_by() const { return text_.stopped_by(); }
  bool called() const {  // and every call is whole
    return calls_ > 0 && (one_call_done_ || !parser_->in_call());
  }

 private:
  void take(const std::string& text, std::vector<ToolPiece>& parts);
  void take(std::vector<ToolPiece> found, std::vector<ToolPiece>& parts);
  std::string new_id(int index) const;

  StreamText text_;
  std::optional<ToolCallParser> parser_;
  const Ids ids_;
  const bool short_ids_;  // Mistral's templates take nine letters and digits only
  const bool several_;
  std::int64_t unstopped_;  // tokens left for which no stop string is looked for
  int calls_ = 0;
  bool one_call_done_ = false;
};

}  // namespace protean
