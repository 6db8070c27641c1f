#pragma once

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "server/answer/answer_writer.h"

namespace protean {

// Reads a body that the dialect takes.
inline DialectCall read_call(ParseDialect parse, const std::string& body) {
  Checked<DialectCall> read = parse(boost::json::parse(body));
  if (const ApiError* error = std::get_if<ApiError>(&read)) {
    ADD_FAILURE() << error->message << " for " << body;
    return {.call = {.input = ChatInput{}}};
  }
  return std::get<DialectCall>(std::move(read));
}

inline const ChatInput& chat_of(const DialectCall& read) {
  return std::get<ChatInput>(read.call.input);
}

// A body that a dialect refuses, the field that it names, and words of the error's message.
struct Refusal {
  std::string body;
  std::string_view param;
  std::string_view said;
};

inline void expect_refused(ParseDialect parse, std::span<const Refusal> table) {
  for (const Refusal& wanted : table) {
    const Checked<DialectCall> read = parse(boost::json::parse(wanted.body));
    const ApiError* error = std::get_if<ApiError>(&read);
    if (error == nullptr) {
      ADD_FAILURE() << "was accepted: " << wanted.body;
      continue;
    }
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->param, wanted.param) << wanted.body;
    EXPECT_NE(error->message.find(wanted.said), std::string::npos) << error->message;
  }
}

// An answer of 3 tokens to a prompt of 7, of which 4 were cached, as a dialect's writer shows it.
struct AnswerWriterTest : testing::Test {
  static constexpr AnswerUsage kStart{.prompt_tokens = 7};
  static constexpr AnswerUsage kEnd{.prompt_tokens = 7, .output_tokens = 3, .cached_tokens = 4};

  static AnswerIdentity identity(std::string id) {
    return {.id = std::move(id), .model = "tiny", .created_s = 5};
  }
  static AnswerPiece text(std::string_view content) {
    return {.parts = {ContentPiece{std::string(content)}}};
  }
  std::string piece(const AnswerPiece& piece) { return writer->piece(0, piece, kStart); }
  std::string finish(const ChoiceEnd& end, const AnswerUsage& usage = kEnd) {
    std::string events = writer->end_choice(0, end, usage);
    return events.append(writer->end(usage));
  }
  // Streams `Hello`, a line break and `"you"` in two pieces, with an empty one in between.
  std::string stream_text() {
    std::string stream = writer->begin(kStart);
    stream += piece(text("Hel"));
    stream += piece({});
    stream += piece(text("lo\n\"you\""));
    return stream + finish({});
  }
  // Streams text, then a call of `look` in two pieces, the second of which begins one of `run`.
  std::string stream_calls(const std::string& first, const std::string& second) {
    std::string stream = writer->begin(kStart);
    stream += piece(text("Let me look."));
    stream += piece({.parts = {CallBegin{0, first, "look"}, ArgumentsPiece{0, R"({"at":)"}}});
    stream += piece({.parts = {ArgumentsPiece{0, R"("x"})"}, CallBegin{1, second, "run"},
                               ArgumentsPiece{1, "{}"}}});
    return stream + finish({.reason = EndReason::kToolCalls});
  }

  std::unique_ptr<AnswerWriter> writer;
};

}  // namespace protean
