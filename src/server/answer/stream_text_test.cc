#include "server/answer/stream_text.h"

#include <gtest/gtest.h>

#include <random>

#include "server/test_scenes/byte_tokenizer_for_test.h"

namespace protean {
namespace {

struct Cut {
  std::string text;
  std::optional<std::string> stop;
};

// Finds the stop string that ends first, and of several the longest, by trying all.
Cut naive(const std::string& text, const std::vector<std::string>& stops, bool keep) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    const std::string_view seen = std::string_view(text).substr(0, end);
    const std::string* longest = nullptr;
    for (const std::string& stop : stops) {
      if (seen.ends_with(stop) && (longest == nullptr || stop.size() > longest->size())) {
        longest = &stop;
      }
    }
    if (longest != nullptr) {
      return {text.substr(0, end - (keep ? 0 : longest->size())), *longest};
    }
  }
  return {text, std::nullopt};
}

TEST(StopMatcher, AgreesWithNaiveSearchForAllPieces) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const auto word = [&](std::size_t longest) {
    std::string made(1 + below(longest), 'a');
    for (char& c : made) {
      c = static_cast<char>('a' + below(2));
    }
    return made;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string text = word(40);
    std::vector<std::string> stops;
    for (std::size_t i = below(4); i > 0; --i) {
      stops.push_back(word(7));
    }
    const bool keep = below(2) == 0;
    const Cut expected = naive(text, stops, keep);
    StopMatcher matcher(stops, keep);
    std::string got;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = 1 + below(5);
      got += matcher.push(std::string_view(text).substr(at, size));
      ASSERT_TRUE(expected.text.starts_with(got)) << "gave out what belongs to a stop string";
      at += size;
    }
    got += matcher.finish();
    ASSERT_EQ(got, expected.text) << text;
    ASSERT_EQ(matcher.matched(), expected.stop) << text;
    matches += expected.stop ? 1 : 0;
  }
  EXPECT_GT(matches, 1000);
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldBeAStop) {
  StopMatcher matcher({"</end>"}, false);
  EXPECT_EQ(matcher.push("a<"), "a");
  EXPECT_EQ(matcher.push("/en"), "");
  EXPECT_EQ(matcher.push("t"), "</ent");
  EXPECT_EQ(matcher.push("x</"), "x");
  EXPECT_EQ(matcher.finish(), "</");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, NothingComesAfterTheMatch) {
  StopMatcher matcher({"END"}, false);
  EXPECT_EQ(matcher.push("one END two"), "one ");
  EXPECT_EQ(matcher.push("three"), "");
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_EQ(matcher.matched(), "END");
}

TEST(StreamText, StopStringOverMultiByteCharacters) {
  const ByteTokenizer tokenizer;
  StreamText text(tokenizer, StopMatcher({"é!"}, false));
  std::string got;
  for (const char c : std::string("caf\xC3\xA9?\xC3\xA9!x")) {
    got += text.push(static_cast<unsigned char>(c));
  }
  EXPECT_EQ(got + text.finish(), "caf\xC3\xA9?");
  EXPECT_EQ(text.stopped_by(), "é!");
}

TEST(StreamText, UnfinishedCharacterBecomesAReplacementAtTheEnd) {
  const ByteTokenizer tokenizer;
  StreamText text(tokenizer, StopMatcher({}, false));
  EXPECT_EQ(text.push('a'), "a");
  EXPECT_EQ(text.push(0xC3), "");
  EXPECT_EQ(text.finish(), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace protean
