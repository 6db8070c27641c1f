#include "server/answer/choice_text.h"

#include <utility>

#include "server/call/tool_fields.h"

namespace protean {
namespace {

// Returns the markers of a tool format that may be special tokens, whose text is not shown
// otherwise.
std::vector<std::string_view> marker_texts(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
    case ToolFormat::kQwenCoder:
      return {"<tool_call>", "</tool_call>"};
    case ToolFormat::kGlm:
      return {"<tool_call>", "</tool_call>", "<arg_key>",
              "</arg_key>",  "<arg_value>",  "</arg_value>"};
    case ToolFormat::kLlama3:
      return {"<|python_tag|>"};
    case ToolFormat::kMistral:
      return {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"};
    case ToolFormat::kGranite:
      return {"<|tool_call|>"};
    case ToolFormat::kCommand:
      return {"<|START_ACTION|>"};
    case ToolFormat::kGlm4:
    case ToolFormat::kNone:
      break;
  }
  return {};
}

std::uint64_t scrambled(std::uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

// True if the answer is the beginning of the text: its prompt is BOS alone.
bool at_text_start(const Request& request, const Tokenizer& tokenizer) {
  return request.prompt.size() == 1 && request.prompt[0] == tokenizer.bos();
}

void append(ToolPiece piece, std::vector<ToolPiece>& parts) {
  if (!parts.empty()) {
    ContentPiece* content = std::get_if<ContentPiece>(&parts.back());
    if (const ContentPiece* more = std::get_if<ContentPiece>(&piece); more && content) {
      content->text += more->text;
      return;
    }
    ArgumentsPiece* arguments = std::get_if<ArgumentsPiece>(&parts.back());
    if (const ArgumentsPiece* more = std::get_if<ArgumentsPiece>(&piece);
        more && arguments && more->index == arguments->index) {
      arguments->text += more->text;
      return;
    }
  }
  parts.push_back(std::move(piece));
}

}  // namespace

TextRules text_rules(const GenerationCall& call, const ServedModel& model) {
  TextRules rules{.stops = StopMatcher(call.stop.strings, call.stop.keep_string),
                  .shown = {.all = call.report.show_special_tokens},
                  .min_tokens = call.stop.min_tokens};
  if (call.tools.offered()) {
    rules.tool_format = model.tool_format;
    rules.tools = offered_tools(call.tools.tools);
    rules.several_calls = call.tools.several_calls();
    for (const std::string_view marker : marker_texts(model.tool_format)) {
      if (const TokenId id = model.tokenizer->find_special(marker); id >= 0) {
        rules.shown.some.push_back(id);
      }
    }
  }
  return rules;
}

ChoiceText::ChoiceText(const TextRules& rules, const Tokenizer& tokenizer,
                       const PreparedChoice& choice, Ids ids)
    : text_(tokenizer, rules.stops, rules.shown, at_text_start(choice.request, tokenizer)),
      ids_(ids),
      short_ids_(rules.tool_format == ToolFormat::kMistral),
      several_(rules.several_calls),
      unstopped_(rules.min_tokens) {
  if (rules.tool_format != ToolFormat::kNone) {
    parser_.emplace(rules.tool_format, rules.tools);
    parser_->push(choice.begun);  // a marker alone, which yields no pieces
  }
}

void ChoiceText::push(TokenId token, std::vector<ToolPiece>& parts) {
  if (ended()) {
    return;
  }
  if (unstopped_ > 0) {
    --unstopped_;
    return take(text_.push_unstopped(token), parts);
  }
  take(text_.push(token), parts);
}

void ChoiceText::finish(std::vector<ToolPiece>& parts, bool cut_off) {
  take(text_.finish(), parts);
  if (parser_) {
    take(parser_->finish(cut_off || text_.stopped_by().has_value()), parts);
  }
}

void ChoiceText::take(const std::string& text, std::vector<ToolPiece>& parts) {
  if (text.empty()) {
    return;
  }
  if (parser_) {
    return take(parser_->push(text), parts);
  }
  append(ContentPiece{text}, parts);
}

void ChoiceText::take(std::vector<ToolPiece> found, std::vector<ToolPiece>& parts) {
  for (ToolPiece& piece : found) {
    if (CallBegin* begin = std::get_if<CallBegin>(&piece)) {
      one_call_done_ = one_call_done_ || (begin->index > 0 && !several_);
      if (!one_call_done_) {
        ++calls_;
        begin->id = begin->id.empty() ? new_id(begin->index) : begin->id;
      }
    }
    if (one_call_done_) {
      return;
    }
    append(std::move(piece), parts);
  }
}

std::string ChoiceText::new_id(int index) const {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  const std::size_t length = short_ids_ ? 9 : 24;
  std::string id(short_ids_ ? std::string_view() : ids_.prefix);
  std::uint64_t bits = scrambled(ids_.nonce + static_cast<std::uint64_t>(index));
  for (std::size_t i = 0; i < length; ++i) {
    id += kLetters[bits % kLetters.size()];
    bits = scrambled(bits);
  }
  return id;
}

}  // namespace protean
