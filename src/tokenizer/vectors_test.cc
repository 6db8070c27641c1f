// Compares with the ids that other implementations produced, on real vocabularies.

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/test_data.h"
#include "tokenizer/gguf_vocabulary_for_test.h"
#include "tokenizer/hf_json.h"
#include "tokenizer/tokenizer.h"

namespace protean {
namespace {

using Ids = std::vector<TokenId>;

struct Vector {
  std::string text;
  Ids ids;
};

std::filesystem::path vector_file(const std::string& family, const std::string& extension) {
  return test_data("tokenizers/llama.cpp-vocab/ggml-vocab-" + family + extension);
}

std::vector<Vector> read_vectors(const std::string& family) {
  std::string inputs = read_test_data(vector_file(family, ".gguf.inp"));
  std::istringstream outputs(read_test_data(vector_file(family, ".gguf.out")));
  const std::string marker = "\n__ggml_vocab_test__\n";
  std::vector<Vector> vectors;
  for (std::string line; std::getline(outputs, line);) {
    Vector vector;
    std::istringstream numbers(line);
    for (TokenId id; numbers >> id;) {
      vector.ids.push_back(id);
    }
    const std::size_t end = inputs.find(marker);
    vector.text = inputs.substr(0, end);
    inputs.erase(0, end == std::string::npos ? inputs.size() : end + marker.size());
    vectors.push_back(std::move(vector));
  }
  return vectors;
}

void expect_vectors(const Tokenizer& tokenizer, const std::string& family) {
  const std::vector<Vector> vectors = read_vectors(family);
  ASSERT_GE(vectors.size(), 46u);
  for (const Vector& vector : vectors) {
    EXPECT_EQ(tokenizer.encode(vector.text, kPlainText), vector.ids) << "'" << vector.text << "'";
    EXPECT_EQ(decode(tokenizer, vector.ids), vector.text);
  }
}

std::unique_ptr<Tokenizer> loaded(const std::filesystem::path& path) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = load_tokenizer(path);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

std::unique_ptr<Tokenizer> from_gguf(const std::filesystem::path& path) {
  auto tokenizer = make_tokenizer(GgufVocabularyForTest(path.string()).vocabulary);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

TEST(Vectors, LlamaSentencePieceFromGguf) {
  PROTEAN_REQUIRE_DATA(vector_file("llama-spm", ".gguf"));
  const auto tokenizer = from_gguf(vector_file("llama-spm", ".gguf"));
  ASSERT_TRUE(tokenizer);
  expect_vectors(*tokenizer, "llama-spm");
  EXPECT_EQ(tokenizer->encode("Hi", {}), (Ids{1, 6324}));
}

TEST(Vectors, Gpt2FromGgufAndFromJson) {
  PROTEAN_REQUIRE_DATA(vector_file("gpt-2", ".gguf"));
  PROTEAN_REQUIRE_DATA(test_data("tokenizers/gpt2"));
  const auto gguf = from_gguf(vector_file("gpt-2", ".gguf"));
  const auto json = loaded(test_data("tokenizers/gpt2"));
  const auto pair = loaded(test_data("tokenizers/gpt2/merges.txt"));
  ASSERT_TRUE(gguf && json && pair);
  for (const Tokenizer* tokenizer : {gguf.get(), json.get(), pair.get()}) {
    expect_vectors(*tokenizer, "gpt-2");
    EXPECT_EQ(tokenizer->eos(), 50256);
    EXPECT_EQ(tokenizer->encode("a<|endoftext|>b", {}), (Ids{64, 50256, 65}));
    EXPECT_EQ(tokenizer->encode("a<|endoftext|>b", kPlainText).size(), 9u);
  }
}

TEST(Vectors, Llama3FromPairAndFromTiktoken) {
  PROTEAN_REQUIRE_DATA(test_data("tokenizers/llama3"));
  PROTEAN_REQUIRE_DATA(vector_file("llama-bpe", ".gguf.inp"));
  const auto pair = loaded(test_data("tokenizers/llama3/encoder.json"));
  const auto tiktoken = loaded(test_data("tokenizers/llama3"));
  ASSERT_TRUE(pair && tiktoken);
  expect_vectors(*pair, "llama-bpe");
  expect_vectors(*tiktoken, "llama-bpe");
  EXPECT_EQ(pair->vocab_size(), 128000);
  EXPECT_EQ(tiktoken->vocab_size(), 128256);
  EXPECT_EQ(tiktoken->find_special("<|eot_id|>"), 128009);
  EXPECT_EQ(tiktoken->token_text(128255), "<|reserved_special_token_247|>");
  EXPECT_EQ(tiktoken->encode("Hello", {}), (Ids{128000, 9906}));
}

// Writes the published tokenizer.json of Llama 3 and Qwen2 from their vocabulary and merges.
std::string published_json(const std::filesystem::path& vocabulary,
                           const std::filesystem::path& merges, const std::string& settings) {
  std::istringstream lines(read_test_data(merges));
  boost::json::array pairs;
  for (std::string line; std::getline(lines, line);) {
    if (const std::size_t space = line.find(' '); line[0] != '#' || line.find("version") > 2) {
      pairs.push_back({line.substr(0, space), line.substr(space + 1)});
    }
  }
  return R"({"model":{"type":"BPE","ignore_merges":true,"vocab":)" + read_test_data(vocabulary) +
         R"(,"merges":)" + boost::json::serialize(pairs) + "}," + settings + "}";
}

std::string split_settings(const std::string& digits) {
  return R"("decoder":{"type":"ByteLevel"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[
      {"type":"Split","behavior":"Isolated","invert":false,"pattern":{"Regex":
       "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|)" +
         digits + R"(| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
      {"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})";
}

TEST(Vectors, PublishedJsonOfLlama3AndQwen2) {
  PROTEAN_REQUIRE_DATA(test_data("tokenizers/llama3"));
  PROTEAN_REQUIRE_DATA(test_data("tokenizers/qwen2.5"));
  const auto parsed = [](const std::string& json) {
    auto tokenizer = parse_tokenizer_json(json, "json", {});
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
  };
  const auto llama = parsed(published_json(test_data("tokenizers/llama3/encoder.json"),
                                           test_data("tokenizers/llama3/vocab.bpe"),
                                           split_settings(R"(\\p{N}{1,3})")));
  ASSERT_TRUE(llama);
  expect_vectors(*llama, "llama-bpe");
  const auto qwen = parsed(published_json(
      test_data("tokenizers/qwen2.5/vocab.json"), test_data("tokenizers/qwen2.5/merges.txt"),
      R"("normalizer":{"type":"NFC"},)" + split_settings(R"(\\p{N})")));
  ASSERT_TRUE(qwen);
  expect_vectors(*qwen, "qwen2");
}

TEST(Vectors, Qwen2FromPair) {
  PROTEAN_REQUIRE_DATA(test_data("tokenizers/qwen2.5"));
  PROTEAN_REQUIRE_DATA(vector_file("qwen2", ".gguf.inp"));
  const auto tokenizer = loaded(test_data("tokenizers/qwen2.5"));
  ASSERT_TRUE(tokenizer);
  expect_vectors(*tokenizer, "qwen2");
  EXPECT_EQ(tokenizer->vocab_size(), 151665);
  EXPECT_EQ(tokenizer->bos(), -1);
  EXPECT_EQ(tokenizer->eos(), 151645);
  EXPECT_EQ(tokenizer->encode("<|im_start|>user\n", {}), (Ids{151644, 872, 198}));
  // An added token that is not special is always found and has its text.
  EXPECT_EQ(tokenizer->encode("<tool_call>", kPlainText), (Ids{151657}));
  EXPECT_EQ(tokenizer->bytes(151657), "<tool_call>");
  EXPECT_EQ(tokenizer->bytes(151644), "");
  // The model was trained on NFC text.
  EXPECT_EQ(tokenizer->encode("e\xCC\x81", kPlainText), tokenizer->encode("\xC3\xA9", kPlainText));
}

TEST(Vectors, Llama2JsonAndModelAgreeWithTheVectors) {
  PROTEAN_REQUIRE_DATA(test_data("tokenizers/llama2"));
  const auto json = loaded(test_data("tokenizers/llama2"));
  const auto model = loaded(test_data("tokenizers/llama2/tokenizer.model"));
  ASSERT_TRUE(json && model);
  for (const Tokenizer* tokenizer : {json.get(), model.get()}) {
    expect_vectors(*tokenizer, "llama-spm");
    EXPECT_EQ(tokenizer->vocab_size(), 32000);
    EXPECT_EQ(tokenizer->bos(), 1);
    EXPECT_EQ(tokenizer->eos(), 2);
    EXPECT_TRUE(tokenizer->strips_leading_space());
    EXPECT_EQ(tokenizer->encode("Hi", {}), (Ids{1, 6324}));
    EXPECT_EQ(tokenizer->encode("</s>", {}), (Ids{1, 2}));
    EXPECT_EQ(tokenizer->bytes(6324), " Hi");
    EXPECT_EQ(tokenizer->bytes(13), "\n");  // <0x0A>
  }
}

TEST(Vectors, SmolLmAndTinyModelsLoad) {
  PROTEAN_REQUIRE_DATA(test_data("tokenizers/smollm"));
  PROTEAN_REQUIRE_DATA(test_data("models/tinystories-656k"));
  const auto smollm = loaded(test_data("tokenizers/smollm"));
  const auto tiny = loaded(test_data("models/tinystories-656k"));
  const auto bf16 = loaded(test_data("models/tinystories-656k-bf16"));
  ASSERT_TRUE(smollm && tiny && bf16);
  EXPECT_EQ(smollm->vocab_size(), 49154);
  const Ids digits = smollm->encode("12 345", kPlainText);
  EXPECT_EQ(digits.size(), 6u);  // each digit alone, and the space
  EXPECT_EQ(decode(*smollm, digits), "12 345");
  EXPECT_EQ(smollm->encode("<|im_start|>", {}), (Ids{1}));

  const Ids story = {147,  201, 282, 215,  286, 598, 1662, 356, 499, 826, 1363, 1145,
                     1652, 615, 242, 1482, 951, 628, 499,  826, 872, 921, 318,  385};
  const std::string text = decode(*tiny, story);
  EXPECT_EQ(text.substr(0, 18), "Once upon a time, ");
  Ids with_bos = {1, 80};  // 80 is the space that the normalizer puts in front
  with_bos.insert(with_bos.end(), story.begin(), story.end());
  EXPECT_EQ(tiny->encode(text, {}), with_bos);
  EXPECT_EQ(bf16->encode(text, {}), with_bos);
  EXPECT_EQ(tiny->eos(), 2);
}

// Compares with the SentencePiece library on text of every kind, including runs of spaces.
void expect_as_sentencepiece(const std::filesystem::path& model) {
  sentencepiece::SentencePieceProcessor oracle;
  ASSERT_TRUE(oracle.Load(model.string()).ok());
  const auto tokenizer = loaded(model);
  ASSERT_TRUE(tokenizer);
  const std::string pieces[] = {
      "a",     "b", "the", " ",  "  ",  "\n",          "\t", "é", "中", "\xF0\x9F\xA6\x99",
      "Hello", "1", ".",   "un", "ing", "\xE2\x96\x81"};
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::size_t length = random() % 20; length > 0; --length) {
      text += pieces[random() % std::size(pieces)];
    }
    std::vector<int> expected;
    ASSERT_TRUE(oracle.Encode(text, &expected).ok());
    ASSERT_EQ(tokenizer->encode(text, kPlainText), Ids(expected.begin(), expected.end()))
        << "'" << text << "'";
  }
  const std::filesystem::path book =
      test_data("text/books/Lewis_Carroll--Alice_s_Adventures_in_Wonderland.md");
  const std::string prose = read_test_data(book);
  std::vector<int> expected;
  ASSERT_TRUE(oracle.Encode(prose, &expected).ok());
  EXPECT_EQ(tokenizer->encode(prose, kPlainText), Ids(expected.begin(), expected.end()));
}

TEST(Vectors, SentencePieceLibraryAgreesOnLlama2) {
  PROTEAN_REQUIRE_DATA(test_data("tokenizers/llama2/tokenizer.model"));
  expect_as_sentencepiece(test_data("tokenizers/llama2/tokenizer.model"));
}

TEST(Vectors, SentencePieceLibraryAgreesOnStories) {
  PROTEAN_REQUIRE_DATA(test_data("models/stories260K/tok512.model"));
  expect_as_sentencepiece(test_data("models/stories260K/tok512.model"));
}

TEST(Vectors, StoriesFromModelAndGguf) {
  PROTEAN_REQUIRE_DATA(test_data("models/stories260K/tok512.model"));
  const auto model = loaded(test_data("models/stories260K/tok512.model"));
  const auto gguf = from_gguf(test_data("models/stories260K/stories260Ktok512.gguf"));
  ASSERT_TRUE(model && gguf);
  const std::string text = "Once upon a time, there was a little girl named Lily.";
  const Ids ids = model->encode(text, kPlainText);
  EXPECT_EQ(ids, gguf->encode(text, kPlainText));
  EXPECT_EQ(decode(*model, ids), text);
  EXPECT_EQ(model->vocab_size(), 512);
  EXPECT_EQ(model->bos(), 1);
}

// Compares two representations of the same vocabulary on real text.
TEST(Vectors, ScoresAndMergesAgreeOnProse) {
  PROTEAN_REQUIRE_DATA(test_data("text/books/Jane_Austen--Emma.md"));
  PROTEAN_REQUIRE_DATA(test_data("tokenizers/llama3"));
  const std::string prose = read_test_data(test_data("text/books/Jane_Austen--Emma.md"));
  const auto json = loaded(test_data("tokenizers/llama2"));
  const auto model = loaded(test_data("tokenizers/llama2/tokenizer.model"));
  const auto pair = loaded(test_data("tokenizers/llama3/encoder.json"));
  const auto tiktoken = loaded(test_data("tokenizers/llama3"));
  ASSERT_TRUE(json && model && pair && tiktoken);
  const Ids ids = json->encode(prose, kPlainText);
  EXPECT_EQ(ids, model->encode(prose, kPlainText));
  EXPECT_EQ(decode(*json, ids), prose);
  EXPECT_EQ(pair->encode(prose, kPlainText), tiktoken->encode(prose, kPlainText));
}

}  // namespace
}  // namespace protean
