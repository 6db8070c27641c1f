#include "tokenizer/hf_json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/test_data.h"
#include "tokenizer/sentencepiece_model.h"

namespace protean {
namespace {

using Ids = std::vector<TokenId>;

struct File {
  std::string model = R"("type":"BPE","vocab":{"a":0,"b":1,"ab":2,"_":3,"_a":4,"<u>":5},)"
                      R"("merges":["a b",["_","a"]],"unk_token":"<u>")";
  std::string added = "[]";
  std::string normalizer = "null";
  std::string pre_tokenizer = "null";
  std::string decoder = "null";
  std::string post_processor = "null";

  std::string json() const {
    return R"({"model":{)" + model + R"(},"added_tokens":)" + added + R"(,"normalizer":)" +
           normalizer + R"(,"pre_tokenizer":)" + pre_tokenizer + R"(,"decoder":)" + decoder +
           R"(,"post_processor":)" + post_processor + "}";
  }
};

std::unique_ptr<Tokenizer> parsed(const File& file) {
  auto tokenizer = parse_tokenizer_json(file.json(), "t.json", {});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

std::string complaint(std::string_view json) {
  const auto tokenizer = parse_tokenizer_json(json, "t.json", {});
  EXPECT_FALSE(tokenizer.ok());
  const std::string message = tokenizer.ok() ? "" : tokenizer.error().message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  return message;
}
std::string complaint(const File& file) {
  return complaint(file.json());
}

TEST(HfJson, MergesAsStringsAndAsPairs) {
  const auto tokenizer = parsed({});
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->encode("ab_ax", kPlainText), (Ids{2, 4, 5}));
  EXPECT_EQ(tokenizer->description(), "BPE (tokenizer.json), 6 tokens");
}

TEST(HfJson, MetaspaceAndItsDecoder) {
  File file;
  file.pre_tokenizer = R"({"type":"Metaspace","replacement":"_","prepend_scheme":"first"})";
  file.decoder = R"({"type":"Metaspace","replacement":"_","prepend_scheme":"first"})";
  const auto tokenizer = parsed(file);
  ASSERT_TRUE(tokenizer);
  const Ids ids = tokenizer->encode("a ab", kPlainText);
  EXPECT_EQ(ids, (Ids{4, 3, 2}));
  EXPECT_EQ(decode(*tokenizer, ids), "a ab");
}

TEST(HfJson, ByteLevelWithPrefixSpace) {
  File file;
  file.model = R"("vocab":{"a":0,"\u0120":1,"\u0120a":2},"merges":["\u0120 a"])";
  file.pre_tokenizer = R"({"type":"Sequence","pretokenizers":[
      {"type":"Split","pattern":{"String":"aa"},"behavior":"Isolated","invert":false},
      {"type":"ByteLevel","add_prefix_space":true,"use_regex":false}]})";
  file.decoder = R"({"type":"ByteLevel"})";
  const auto tokenizer = parsed(file);
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->encode("a", kPlainText), (Ids{2}));
  EXPECT_EQ(tokenizer->encode(" aaa", kPlainText), (Ids{1, 2, 0, 2}));
  EXPECT_EQ(tokenizer->bytes(2), " a");
  EXPECT_EQ(tokenizer->token_text(2),
            "\xC4\xA0"
            "a");
}

TEST(HfJson, AddedTokensAndTemplate) {
  File file;
  file.added = R"([{"id":6,"content":"<s>","special":true,"normalized":true},
                   {"id":9,"content":"<t>","special":false,"lstrip":true},
                   {"id":77,"content":"ab","special":true}])";
  file.post_processor = R"({"type":"Sequence","processors":[{"type":"ByteLevel"},
      {"type":"TemplateProcessing",
       "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},
                 {"SpecialToken":{"id":"<e>","type_id":0}}],
       "special_tokens":{"<s>":{"id":"<s>","ids":[6],"tokens":["<s>"]},
                         "<e>":{"id":"<e>","ids":[3,5],"tokens":["_","<u>"]}}}]})";
  const auto tokenizer = parsed(file);
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->encode("a <t>b", {}), (Ids{6, 0, 9, 1, 3, 5}));
  EXPECT_EQ(tokenizer->encode("a<s>b", {.add_special = false}), (Ids{0, 6, 1}));
  EXPECT_EQ(tokenizer->encode("a<s>b", kPlainText), (Ids{0, 5, 5, 5, 1}));
  EXPECT_EQ(tokenizer->bos(), 6);
  EXPECT_EQ(tokenizer->find_special("<t>"), 9);
  EXPECT_EQ(tokenizer->find_special("ab"), 2);  // the id in the model's vocabulary
  EXPECT_EQ(tokenizer->find_special("b"), -1);
  EXPECT_EQ(tokenizer->vocab_size(), 10);
  EXPECT_EQ(tokenizer->bytes(6), "");
  EXPECT_EQ(tokenizer->bytes(9), "<t>");
  EXPECT_EQ(tokenizer->bytes(8), "");  // a hole
}

TEST(HfJson, NormalizedAddedTokensAreFoundInNormalizedText) {
  File file;
  file.normalizer = R"({"type":"Sequence","normalizers":[{"type":"Lowercase"},
      {"type":"Strip","strip_left":true,"strip_right":true},{"type":"Prepend","prepend":"_"}]})";
  file.added = R"([{"id":6,"content":"Foo","special":false,"normalized":true}])";
  const auto tokenizer = parsed(file);
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->encode(" AFOOB ", kPlainText), (Ids{4, 6, 1}));
}

TEST(HfJson, UnknownTokens) {
  File file;
  file.model += R"(,"fuse_unk":true)";
  EXPECT_EQ(parsed(file)->encode("xya", kPlainText), (Ids{5, 0}));
  file.model = R"("type":"BPE","vocab":{"a":0},"merges":[])";
  EXPECT_EQ(parsed(file)->encode("xay", kPlainText), (Ids{0}));
  file.model = R"("type":"BPE","vocab":{"a":0,"<0xC3>":1,"<0xA9>":2,"<u>":3},"merges":[],)"
               R"("unk_token":"<u>","byte_fallback":true)";
  EXPECT_EQ(parsed(file)->encode("\xC3\xA9"
                                 "b",
                                 kPlainText),
            (Ids{1, 2, 3}));
}

TEST(HfJson, IgnoreMergesTakesWholePieces) {
  File file;
  file.model = R"("type":"BPE","vocab":{"a":0,"aa":1},"merges":[],"ignore_merges":true)";
  file.pre_tokenizer = R"({"type":"WhitespaceSplit"})";
  EXPECT_EQ(parsed(file)->encode("aa aaa", kPlainText), (Ids{1, 0, 0, 0}));
}

TEST(HfJson, RefusesUnknownComponentsByName) {
  const auto with = [](std::string File::*part, std::string value) {
    File file;
    file.*part = std::move(value);
    return complaint(file);
  };
  EXPECT_EQ(with(&File::model, R"("type":"WordPiece","vocab":{})"),
            "t.json: model 'WordPiece' is not supported (only BPE and Unigram are)");
  EXPECT_EQ(with(&File::normalizer, R"({"type":"BertNormalizer"})"),
            "t.json: normalizer 'BertNormalizer' is not supported");
  EXPECT_EQ(with(&File::pre_tokenizer, R"({"type":"UnicodeScripts"})"),
            "t.json: pre_tokenizer 'UnicodeScripts' is not supported");
  EXPECT_EQ(with(&File::pre_tokenizer, R"({"type":"Sequence","pretokenizers":[
                 {"type":"ByteLevel"},{"type":"Digits"}]})"),
            "t.json: pre_tokenizer 'Digits after ByteLevel' is not supported");
  EXPECT_EQ(with(&File::decoder, R"({"type":"Replace","content":"x"})"),
            "t.json: decoder has no 'pattern'");
  EXPECT_EQ(with(&File::normalizer, R"({"type":"Replace","pattern":{"String":""}})"),
            "t.json: normalizer has an empty pattern");
  const std::string grow = R"({"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaa"})";
  EXPECT_EQ(
      with(&File::normalizer, R"({"type":"Sequence","normalizers":[)" + grow + "," + grow + "]}"),
      "t.json: normalizer can make a text more than 64 times longer");
  EXPECT_EQ(with(&File::decoder, R"({"type":"WordPiece"})"),
            "t.json: decoder 'WordPiece' is not supported");
  EXPECT_EQ(with(&File::decoder, R"({"type":"Strip","content":" ","start":0,"stop":1})"),
            "t.json: decoder 'Strip of anything but one space in front' is not supported");
  EXPECT_EQ(with(&File::post_processor, R"({"type":"RobertaProcessing"})"),
            "t.json: post_processor 'RobertaProcessing' is not supported");
  EXPECT_EQ(with(&File::model, R"("vocab":{"a":0},"merges":[],"dropout":0.1)"),
            "t.json: model with 'dropout' is not supported");
  EXPECT_EQ(with(&File::model, R"("vocab":{"a":0},"merges":[],"end_of_word_suffix":"</w>")"),
            "t.json: model with 'end_of_word_suffix' is not supported");
  EXPECT_EQ(with(&File::pre_tokenizer,
                 R"({"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})")
                .substr(0, 39),
            "t.json: pre_tokenizer: pattern '(' does");
  EXPECT_EQ(with(&File::decoder, R"({"type":"ByteLevel"})").substr(0, 33),
            "t.json: decoder 'ByteLevel' witho");
}

TEST(HfJson, RefusesInconsistentFiles) {
  const auto model = [](std::string text) {
    File file;
    file.model = std::move(text);
    return complaint(file);
  };
  EXPECT_EQ(model(R"("vocab":{"a":0},"merges":["a b"])"),
            "t.json: merge 0 joins 'a' and 'b', but 'b' is not in the vocabulary");
  EXPECT_EQ(model(R"("vocab":{"a":0,"b":0},"merges":[])"),
            "t.json: model vocab: 'a' and 'b' both have id 0");
  for (const char* id : {"-1", "5000000000", "99999999999999999999", "1.5", "\"0\"", "null"}) {
    EXPECT_EQ(model(std::string(R"("vocab":{"a":)") + id + R"(},"merges":[])"),
              "t.json: model vocab: the id of 'a' is not a number from 0 to 65538");
  }
  EXPECT_EQ(model(R"("vocab":[1],"merges":[])"), "t.json: model vocab is not an object");
  EXPECT_EQ(model(R"("vocab":{},"merges":[])"), "t.json: model vocab is empty");
  EXPECT_EQ(model(R"("vocab":{"a":0},"merges":{})"), "t.json: 'merges' of model is not an array");
  EXPECT_EQ(model(R"("vocab":{"a":0},"merges":["a  a"])"), "t.json: merge 0 is not two tokens");
  EXPECT_EQ(model(R"("vocab":{"a":0},"merges":[["a"]])"), "t.json: merge 0 is not two tokens");
  EXPECT_EQ(model(R"("vocab":{"a":0},"merges":[],"unk_token":"x")"),
            "t.json: model's unk_token 'x' is not in its vocab");
  EXPECT_EQ(model(R"("vocab":{"a":0},"merges":[],"byte_fallback":1)"),
            "t.json: 'byte_fallback' of model is not true or false");
  EXPECT_EQ(complaint("{}"), "t.json: has no 'model'");
  EXPECT_EQ(complaint("[]"), "t.json: the JSON is not an object");
  EXPECT_EQ(complaint(R"({"model")"), "t.json: the JSON ends early, at byte 8");
  EXPECT_NE(complaint(std::string(1000, '[')).find("not JSON near byte"), std::string::npos);
}

TEST(HfJson, RefusesInconsistentAddedTokensAndTemplates) {
  File file;
  file.added = R"([{"id":0,"content":"zz"}])";
  EXPECT_EQ(complaint(file), "t.json: added token 'zz' has id 0, which is 'a'");
  file.added = R"([{"id":-3,"content":"zz"}])";
  EXPECT_EQ(complaint(file), "t.json: added token 'zz' with id -3, among 6 tokens");
  file.added = R"([{"content":"zz"}])";
  EXPECT_EQ(complaint(file), "t.json: an added token has no 'id'");
  file.added = R"([7])";
  EXPECT_EQ(complaint(file), "t.json: an added token is not an object");
  file.added = "[]";
  file.post_processor = R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}},
      {"SpecialToken":{"id":"x"}}],"special_tokens":{"x":{"ids":[70]}}})";
  EXPECT_EQ(complaint(file), "t.json: post_processor adds token 70, but there are 6");
  file.post_processor = R"({"type":"TemplateProcessing","single":[]})";
  EXPECT_EQ(complaint(file), "t.json: post_processor has no place for the text");
}

// Truncated and changed real files must give an error or a tokenizer, never a crash.
TEST(HfJson, DamagedFilesDoNotCrash) {
  PROTEAN_REQUIRE_DATA(test_data("models/tinystories-656k"));
  const std::string whole = read_test_data(test_data("models/tinystories-656k/tokenizer.json"));
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const auto cut = parse_tokenizer_json(whole.substr(0, random() % whole.size()), "t", {});
    EXPECT_FALSE(cut.ok());
    std::string changed = whole;
    for (int i = 0; i < 5; ++i) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    if (const auto tokenizer = parse_tokenizer_json(changed, "t", {}); tokenizer.ok()) {
      decode(**tokenizer, (*tokenizer)->encode("Once upon a time", {}));
    }
  }
}

TEST(SentencePieceModel, DamagedFilesDoNotCrash) {
  PROTEAN_REQUIRE_DATA(test_data("models/stories260K"));
  const std::string whole = read_test_data(test_data("models/stories260K/tok512.model"));
  ASSERT_TRUE(read_sentencepiece_model(whole).ok());
  EXPECT_FALSE(read_sentencepiece_model("").ok());
  EXPECT_FALSE(read_sentencepiece_model("{}").ok());
  std::mt19937 random(6);
  for (int round = 0; round < 2000; ++round) {
    EXPECT_FALSE(read_sentencepiece_model(whole.substr(0, random() % 7000)).ok());
    std::string changed = whole;
    for (int i = 0; i < 3; ++i) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    if (auto model = read_sentencepiece_model(changed); model.ok()) {
      if (const auto tokenizer = make_tokenizer(*model); tokenizer.ok()) {
        decode(**tokenizer, (*tokenizer)->encode("Once upon a time", {}));
      }
    }
  }
}

}  // namespace
}  // namespace protean
