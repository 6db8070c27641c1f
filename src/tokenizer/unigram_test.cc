// Unigram models against the SentencePiece library, which trains one here, and against the
// definition.
#include "tokenizer/unigram.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tokenizer/hf_json.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tokenizer.h"

namespace protean {
namespace {

namespace json = boost::json;

class MadeSentences final : public sentencepiece::SentenceIterator {
 public:
  MadeSentences() {
    const char* const words[] = {"the",  "then", "these", "a",     "an",    "and", "cat",   "cats",
                                 "dog",  "dogs", "un",    "under", "stand", "ing", "Ｗide", "ﬁne",
                                 "café", "日本", "語",    "1",     "12",    "123", "x"};
    std::mt19937 random(5);
    for (int line = 0; line < 400; ++line) {
      std::string sentence;
      for (auto left = 3 + random() % 8; left > 0; --left) {
        sentence += words[random() % std::size(words)];
        sentence += random() % 4 == 0 ? "" : " ";
      }
      sentences_.push_back(std::move(sentence));
    }
  }
  bool done() const override { return at_ == sentences_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return sentences_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string> sentences_;
  std::size_t at_ = 0;
};

// Returns the bytes of a tokenizer.model.
std::string trained(const std::string& flags) {
  MadeSentences sentences;
  std::string bytes;
  const auto done = sentencepiece::SentencePieceTrainer::Train(
      "--model_type=unigram --vocab_size=320 --hard_vocab_limit=false --num_threads=1 "
      "--minloglevel=3 " +
          flags,
      &sentences, &bytes);
  EXPECT_TRUE(done.ok()) << done.ToString();
  return bytes;
}

std::string random_unigram_text(std::mt19937& random) {
  const char* const pieces[] = {"the",  "n",  "cat", "s",    " ",  "  ",      "un",
                                "der",  "ﬁ",  "Ａ",  "日本", "語", "e\u0301", "\u00a0",
                                "\t",   "㈱", "é",   "1",    "23", "中",      "\u200b",
                                "🦙", "q",  "\n",  "▁",    ".",  "x",       "ing"};
  std::string text;
  for (auto left = random() % 14; left > 0; --left) {
    text += pieces[random() % std::size(pieces)];
  }
  return text;
}

using Ids = std::vector<TokenId>;

TEST(Unigram, TheSentencePieceLibraryAgrees) {
  for (const char* flags :
       {"--normalization_rule_name=nmt_nfkc", "--normalization_rule_name=identity",
        "--normalization_rule_name=nmt_nfkc --byte_fallback=true",
        "--remove_extra_whitespaces=false --add_dummy_prefix=false"}) {
    const std::string bytes = trained(flags);
    sentencepiece::SentencePieceProcessor oracle;
    ASSERT_TRUE(oracle.LoadFromSerializedProto(bytes).ok());
    auto vocabulary = read_sentencepiece_model(bytes);
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.error().message;
    EXPECT_EQ(vocabulary->kind, Vocabulary::Kind::kUnigram);
    const auto tokenizer = make_tokenizer(*std::move(vocabulary));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    std::mt19937 random(3);
    for (int round = 0; round < 400; ++round) {
      const std::string text = random_unigram_text(random);
      std::vector<int> expected;
      ASSERT_TRUE(oracle.Encode(text, &expected).ok());
      ASSERT_EQ((*tokenizer)->encode(text, kPlainText), Ids(expected.begin(), expected.end()))
          << flags << " on '" << text << "'";
    }
  }
}

std::string base64_of(std::string_view bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8U | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      text += at + i <= bytes.size() ? kAlphabet[bits >> (18 - 6 * i) & 63U] : '=';
    }
  }
  return text;
}

// Writes a vocabulary as converters write a tokenizer.json.
std::string unigram_json(const Vocabulary& vocabulary) {
  json::array pieces;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    pieces.push_back(json::array{vocabulary.tokens[id], vocabulary.scores[id]});
  }
  const json::object squeeze{
      {"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}};
  const json::object map{{"type", "Precompiled"},
                         {"precompiled_charsmap", base64_of(vocabulary.charsmap)}};
  return json::serialize(json::object{
      {"added_tokens", json::array()},
      {"normalizer", {{"type", "Sequence"}, {"normalizers", json::array{map, squeeze}}}},
      {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "▁"}, {"split", false}}},
      {"decoder", {{"type", "Metaspace"}, {"replacement", "▁"}}},
      {"post_processor", nullptr},
      {"model",
       {{"type", "Unigram"}, {"unk_id", vocabulary.unknown}, {"vocab", std::move(pieces)}}}});
}

// Tries all ways to cut a text into pieces and returns the score of the best one.
double best_score(std::string_view text, const Vocabulary& vocabulary) {
  if (text.empty()) {
    return 0.0;
  }
  double lowest = 0.0;
  for (const float score : vocabulary.scores) {
    lowest = std::min(lowest, static_cast<double>(score));
  }
  std::size_t character = 1;
  while (character < text.size() && (text[character] & 0xC0) == 0x80) {
    ++character;
  }
  double best = -1e9;
  bool single = false;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    if (!token.empty() && text.starts_with(token)) {
      single = single || token.size() == character;
      best =
          std::max(best, vocabulary.scores[id] + best_score(text.substr(token.size()), vocabulary));
    }
  }
  if (!single) {
    best = std::max(best, lowest - 10.0 + best_score(text.substr(character), vocabulary));
  }
  return best;
}

TEST(Unigram, TokenizerJsonTakesTheLikeliestPieces) {
  auto vocabulary = read_sentencepiece_model(trained("--normalization_rule_name=nmt_nfkc"));
  ASSERT_TRUE(vocabulary.ok());
  const auto tokenizer = parse_tokenizer_json(unigram_json(*vocabulary), "t.json", {});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_NE((*tokenizer)->description().find("Unigram"), std::string::npos);
  std::mt19937 random(4);
  for (int round = 0; round < 100; ++round) {
    std::string text;
    const char* const parts[] = {"the", "n", "cat", "s", "under", "ing", "12", "3", "x", "Q"};
    for (auto left = 1 + random() % 3; left > 0; --left) {
      text += parts[random() % std::size(parts)];
    }
    double score = 0.0;
    std::string read;
    for (const TokenId id : (*tokenizer)->encode(text, kPlainText)) {
      const bool unknown = id == vocabulary->unknown;  // stands for one Q, or for several
      read += unknown ? std::string("?") : std::string((*tokenizer)->token_text(id));
      score += unknown ? 0.0 : vocabulary->scores[static_cast<std::size_t>(id)];
    }
    if (read.find('?') == std::string::npos) {
      ASSERT_EQ(read, "▁" + text);
      ASSERT_NEAR(score, best_score("▁" + text, *vocabulary), 1e-9) << text;
    } else {
      ASSERT_NE(text.find('Q'), std::string::npos);
    }
  }
}

// The replacements of characters are those of the library, also where a cluster has several.
TEST(Unigram, TokenizerJsonReplacesCharactersAsTheLibraryDoes) {
  const std::string bytes = trained("--normalization_rule_name=nmt_nfkc");
  sentencepiece::SentencePieceProcessor oracle;
  ASSERT_TRUE(oracle.LoadFromSerializedProto(bytes).ok());
  const auto vocabulary = read_sentencepiece_model(bytes);
  ASSERT_TRUE(vocabulary.ok());
  const auto tokenizer = parse_tokenizer_json(unigram_json(*vocabulary), "t.json", {});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  for (const char* text : {"the ﬁne Ｗide cats", "cafe\u0301 日本語", "1２3 ㈱x", "dogs\u200bstand",
                           "the\u00a0cat\tand", "underſtand"}) {
    std::vector<int> expected;
    ASSERT_TRUE(oracle.Encode(text, &expected).ok());
    EXPECT_EQ((*tokenizer)->encode(text, kPlainText), Ids(expected.begin(), expected.end()))
        << text;
  }
}

std::unique_ptr<Tokenizer> small_unigram(std::string_view more) {
  auto made = parse_tokenizer_json(
      R"({"model":{"type":"Unigram","vocab":[["<unk>",0],["a",-1],["b",-1],["ab",-1.5],["<0x78>",-9],)"
      R"(["<0x79>",-9],["zz",-50]],"unk_id":0)" +
          std::string(more) + R"(},"added_tokens":[]})",
      "t.json", {});
  EXPECT_TRUE(made.ok()) << made.error().message;
  return made.ok() ? *std::move(made) : nullptr;
}

TEST(Unigram, UnknownCharactersAreJoinedOrWrittenAsBytes) {
  EXPECT_EQ(small_unigram("")->encode("abaxyb", kPlainText), (Ids{3, 1, 0, 2}));
  EXPECT_EQ(small_unigram(R"(,"byte_fallback":true)")->encode("axyb", kPlainText),
            (Ids{1, 4, 5, 2}));
  EXPECT_EQ(small_unigram(R"(,"byte_fallback":true)")->encode("axqb", kPlainText), (Ids{1, 0, 2}));
  // Two unknown characters are likelier than the piece, but joined they are looked up.
  EXPECT_EQ(small_unigram("")->encode("zz", kPlainText), (Ids{6}));
}

TEST(Unigram, DamagedFilesAreRefused) {
  const auto complaint = [](std::string_view text) {
    const auto made = parse_tokenizer_json(text, "t.json", {});
    return made.ok() ? std::string("accepted") : made.error().message;
  };
  EXPECT_NE(complaint(R"({"model":{"type":"Unigram","vocab":[["a"]]}})").find("entry 0"),
            std::string::npos);
  EXPECT_NE(complaint(R"({"model":{"type":"Unigram","vocab":[]}})").find("0 entries"),
            std::string::npos);
  EXPECT_NE(
      complaint(R"({"model":{"type":"Unigram","vocab":[["a",0]],"unk_id":1}})").find("unk_id"),
      std::string::npos);
  EXPECT_NE(complaint(R"({"model":{"type":"Unigram","vocab":[["a",0]]},)"
                      R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"/////w=="}})")
                .find("charsmap"),
            std::string::npos);
  const std::string bytes = trained("--normalization_rule_name=nmt_nfkc");
  std::mt19937 random(6);
  for (int round = 0; round < 100; ++round) {
    std::string changed = bytes;
    for (int i = 0; i < 20; ++i) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    if (auto vocabulary = read_sentencepiece_model(changed); vocabulary.ok()) {
      if (const auto tokenizer = make_tokenizer(*std::move(vocabulary)); tokenizer.ok()) {
        (*tokenizer)->encode("Ｗide ﬁne e\u0301", {});
      }
    }
  }
}

}  // namespace
}  // namespace protean
