#include "server/answer/answer_writer.h"

#include <boost/json/parse.hpp>

#include "base/check.h"

namespace protean {

std::string_view to_string(EndReason reason) {
  switch (reason) {
    case EndReason::kStop:
      return "stop";
    case EndReason::kLength:
      return "length";
    case EndReason::kToolCalls:
      return "tool_calls";
  }
  return "stop";
}

const std::string& text_of(const ToolPiece& part) {
  static const std::string kNone;
  if (const ContentPiece* content = std::get_if<ContentPiece>(&part)) {
    return content->text;
  }
  const ArgumentsPiece* arguments = std::get_if<ArgumentsPiece>(&part);
  return arguments == nullptr ? kNone : arguments->text;
}

SortedAnswer sorted(const AnswerChoice& choice) {
  SortedAnswer answer;
  for (const AnswerPiece& piece : choice.pieces) {
    for (const ToolPiece& part : piece.parts) {
      if (const CallBegin* begin = std::get_if<CallBegin>(&part)) {
        answer.calls.push_back({.id = begin->id, .name = begin->name, .arguments = {}});
      } else if (std::holds_alternative<ContentPiece>(part)) {
        answer.text += text_of(part);
      } else {
        check(!answer.calls.empty(), "arguments follow the beginning of their call");
        answer.calls.back().arguments += text_of(part);
      }
    }
    answer.tokens.insert(answer.tokens.end(), piece.tokens.begin(), piece.tokens.end());
  }
  return answer;
}

bool is_whole(std::string_view arguments) {
  constexpr boost::json::parse_options kDeep{.max_depth = 256};
  boost::system::error_code ec;
  const boost::json::value parsed = boost::json::parse(arguments, ec, {}, kDeep);
  return !ec && parsed.is_object();
}

}  // namespace protean
