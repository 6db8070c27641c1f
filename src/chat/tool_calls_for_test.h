#pragma once

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <string>
#include <vector>

#include "chat/tool_calls.h"

namespace protean {

// Writes content and calls in order: content as it is, a call as «name#id arguments».
class Outcome {
 public:
  void add(const std::vector<ToolPiece>& pieces) {
    for (const ToolPiece& piece : pieces) {
      if (const auto* content = std::get_if<ContentPiece>(&piece)) {
        close();
        text_ += content->text;
      } else if (const auto* begin = std::get_if<CallBegin>(&piece)) {
        close();
        EXPECT_EQ(begin->index, calls_++);
        text_ += "«" + begin->name + (begin->id.empty() ? "" : "#" + begin->id) + " ";
        open_ = true;
      } else if (const auto* arguments = std::get_if<ArgumentsPiece>(&piece)) {
        EXPECT_TRUE(open_);
        EXPECT_EQ(arguments->index, calls_ - 1);
        text_ += arguments->text;
      }
    }
  }
  std::string text() {
    close();
    return text_;
  }
  int calls() const { return calls_; }

 private:
  void close() {
    if (open_) text_ += "»";
    open_ = false;
  }
  std::string text_;
  bool open_ = false;
  int calls_ = 0;
};

inline const std::vector<OfferedTool>& offered() {
  static const std::vector<OfferedTool> tools = {
      {"f", boost::json::parse(R"({"type":"object","properties":{
          "s":{"type":"string"},"n":{"type":"number"},"i":{"type":"integer"},"b":{"type":"boolean"},
          "l":{"type":"array","items":{"type":"string"}},"o":{"$ref":"#/$defs/any"},
          "e":{"enum":["x","12"]},"u":{"type":["string","null"]},"w":{"anyOf":[{"type":"integer"},
          {"type":"string"}]}},"$defs":{"any":{"type":"object"}}})")
                .as_object()},
      {"get_weather", {}}};
  return tools;
}

inline std::string parse_in_pieces(ToolFormat format, std::string_view text,
                                   const std::vector<std::size_t>& lengths) {
  ToolCallParser parser(format, offered());
  Outcome outcome;
  for (std::size_t at = 0, i = 0; at < text.size(); ++i) {
    const std::size_t length = lengths[i % lengths.size()];
    outcome.add(parser.push(text.substr(at, length)));
    at += length;
  }
  outcome.add(parser.finish());
  return outcome.text();
}

inline std::string parse(ToolFormat format, std::string_view text) {
  const std::string whole = parse_in_pieces(format, text, {text.size() + 1});
  EXPECT_EQ(parse_in_pieces(format, text, {1}), whole) << text;
  EXPECT_EQ(parse_in_pieces(format, text, {3, 1, 7}), whole) << text;
  return whole;
}

}  // namespace protean
