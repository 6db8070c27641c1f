#include "loadtest/sse_parser.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "loadtest/random.h"

namespace protean::loadtest {
namespace {

using Events = std::vector<std::pair<std::string, std::string>>;

Events parse(const std::vector<std::string>& pieces) {
  SseParser parser;
  Events events;
  for (const std::string& piece : pieces) {
    parser.feed(piece, [&](const SseEvent& event) { events.emplace_back(event.type, event.data); });
  }
  return events;
}

TEST(SseParser, ParsesExamplesOfTheStandard) {
  EXPECT_EQ(parse({"data: one\n\ndata:two\n\n"}), (Events{{"message", "one"}, {"message", "two"}}));
  EXPECT_EQ(parse({"data: YHOO\ndata: +2\ndata: 10\n\n"}), (Events{{"message", "YHOO\n+2\n10"}}));
  EXPECT_EQ(parse({": ping\n\nevent: add\nid: 7\nretry: 5\ndata:  x\n\n"}),
            (Events{{"add", " x"}}));
  EXPECT_EQ(parse({"data\n\ndata\ndata\n\ndata:"}), (Events{{"message", ""}, {"message", "\n"}}));
  EXPECT_EQ(parse({"data: a\r\n\r\ndata: b\r\rdata: c\n\r\n"}),
            (Events{{"message", "a"}, {"message", "b"}, {"message", "c"}}));
  EXPECT_EQ(parse({"\xef\xbb\xbf"
                   "data: bom\n\nevent: x\n\ndata: y\n\n"}),
            (Events{{"message", "bom"}, {"message", "y"}}));
  EXPECT_EQ(parse({"data: never ended"}), Events{});
}

TEST(SseParser, EventsDoNotDependOnPieces) {
  static constexpr std::string_view kAlphabet[] = {
      "data", ":", " ", "\n", "\r", "\r\n", "\n\n", "event", "x", "data: ", "\xef\xbb\xbf", "id"};
  Random random(7);
  std::size_t seen = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string stream;
    for (std::int64_t i = random.integer(0, 40); i > 0; --i) {
      stream += kAlphabet[random.integer(0, std::ssize(kAlphabet) - 1)];
    }
    std::vector<std::string> pieces;
    for (std::string_view rest = stream; !rest.empty();) {
      const auto size = static_cast<std::size_t>(random.integer(0, 5));
      pieces.emplace_back(rest.substr(0, size));
      rest.remove_prefix(pieces.back().size());
    }
    const Events whole = parse({stream});
    seen += whole.size();
    ASSERT_EQ(parse(pieces), whole) << stream;
  }
  EXPECT_GT(seen, 500U) << "random streams contain events";
}

TEST(SseParser, LimitsTheSizeOfAnEvent) {
  SseParser parser(100);
  int events = 0;
  const auto count = [&](const SseEvent&) { ++events; };
  EXPECT_TRUE(parser.feed("data: " + std::string(80, 'x') + "\n\n", count));
  EXPECT_EQ(events, 1);
  EXPECT_TRUE(parser.feed("data: " + std::string(50, 'x') + "\n", count));
  EXPECT_FALSE(parser.feed("data: " + std::string(60, 'x') + "\n\n", count));
  EXPECT_FALSE(parser.feed("data: y\n\n", count));
  EXPECT_EQ(events, 1);
}

}  // namespace
}  // namespace protean::loadtest
