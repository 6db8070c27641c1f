#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/test_data.h"
#include "measure/documents.h"
#include "measure/schedule_score.h"
#include "measure/text_score.h"
#include "tests/reference/reference_model.h"

namespace protean {
namespace {

const auto no_progress = [](std::int64_t, std::int64_t) {};

std::unique_ptr<LocalClient> open_model(const std::filesystem::path& path, const char* dtype) {
  auto client =
      LocalClient::open({.model = path.string(), .dtype = dtype, .compute = {.threads = 2}});
  EXPECT_TRUE(client.ok()) << client.error().message;
  return client.ok() ? *std::move(client) : nullptr;
}

class TextFile {
 public:
  TextFile(const std::string& name, const std::string& content)
      : path_(std::filesystem::temp_directory_path() / ("protean-eval-test-" + name)) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TextFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Returns the first 40 stories of more than 200 characters, with line breaks replaced by spaces.
std::string forty_stories(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  constexpr std::string_view kEnd = "<|endoftext|>";
  std::string lines;
  int stories = 0;
  for (std::size_t begin = 0; stories < 40;) {
    const std::size_t end = text.find(kEnd, begin);
    std::string story = text.substr(begin, end - begin);
    begin = end + kEnd.size();
    story.erase(0, story.find_first_not_of(" \n"));
    story.erase(story.find_last_not_of(" \n") + 1);
    std::replace(story.begin(), story.end(), '\n', ' ');
    if (story.size() > 200) {
      lines += boost::json::serialize(boost::json::object{{"text", story}}) + "\n";
      ++stories;
    }
  }
  return lines;
}

// An independent program found this number for this model and these stories.
TEST(Eval, TinyStoriesScoresAsIsKnown) {
  const auto model = test_data("models/tinystories-656k");
  const auto text = test_data("text/tinystories/tinystories_sample_2MiB.txt");
  PROTEAN_REQUIRE_DATA(model);
  PROTEAN_REQUIRE_DATA(text);
  const TextFile stories("stories.jsonl", forty_stories(text));
  const auto client = open_model(model, "bf16");
  const auto documents = read_documents(stories.path(), "", *client->files().tokenizer);
  ASSERT_TRUE(documents.ok()) << documents.error().message;
  EXPECT_EQ(documents->size(), 40U);
  const auto score = score_text(*client, nullptr, *documents, {512, 256}, no_progress);
  ASSERT_TRUE(score.ok()) << score.error().message;
  EXPECT_EQ(score->likelihood.tokens(), 5756);
  EXPECT_EQ(score->likelihood.bytes(), 26816);
  EXPECT_NEAR(score->likelihood.nats_per_token(), 2.8881, 0.005 * 2.8881);
}

double reference_nats(const LocalClient& client, const std::vector<Document>& documents) {
  const ReferenceModel reference(*client.files().checkpoint, Precision::kF32);
  double nats = 0.0;
  std::int64_t count = 0;
  for (const Document& document : documents) {
    const auto logits = reference.logits(document.tokens);
    for (std::size_t i = 0; i + 1 < document.tokens.size(); ++i) {
      const std::vector<double>& row = logits[i];
      const double top = *std::max_element(row.begin(), row.end());
      double sum = 0.0;
      for (const double logit : row) {
        sum += std::exp(logit - top);
      }
      nats -= row[static_cast<std::size_t>(document.tokens[i + 1])] - top - std::log(sum);
      ++count;
    }
  }
  return nats / static_cast<double>(count);
}

// Returns the model that ships with Protean if it exists, otherwise a small trained one.
std::filesystem::path any_model() {
  const std::filesystem::path builtin = "models/builtin";
  return std::filesystem::exists(builtin / "config.json") ? builtin
                                                          : test_data("models/tinystories-656k");
}

constexpr const char* kTwoDocuments =
    R"({"text": "Once upon a time there was a king who had three sons, and the youngest was called Hans."})"
    "\n"
    R"({"text": "She looked out of the window. It was raining, and nobody was in the street but a dog."})"
    "\n";

TEST(Eval, AgreesWithAnIndependentEvaluationInDoublePrecision) {
  const auto path = any_model();
  PROTEAN_REQUIRE_DATA(path);
  const TextFile text("two.jsonl", kTwoDocuments);
  for (const char* dtype : {"bf16", "f32"}) {
    const auto client = open_model(path, dtype);
    const auto documents = read_documents(text.path(), "", *client->files().tokenizer);
    ASSERT_TRUE(documents.ok()) << documents.error().message;
    // Windows are as long as the documents, because the reference reads them from their beginnings.
    const auto score = score_text(*client, nullptr, *documents, {128, 64}, no_progress);
    ASSERT_TRUE(score.ok()) << score.error().message;
    const double expected = reference_nats(*client, *documents);
    EXPECT_NEAR(score->likelihood.nats_per_token(), expected, 0.005 * expected) << dtype;
  }
}

TEST(Eval, AModelDivergesFromItselfNotAtAllAndFromAnotherPrecisionALittle) {
  const auto path = any_model();
  PROTEAN_REQUIRE_DATA(path);
  const TextFile text("two.jsonl", kTwoDocuments);
  const auto model = open_model(path, "bf16");
  const auto same = open_model(path, "bf16");
  const auto exact = open_model(path, "f32");
  const auto documents = read_documents(text.path(), "", *model->files().tokenizer);
  ASSERT_TRUE(documents.ok()) << documents.error().message;
  // Windows are shorter than the documents, so that rows of several windows must be kept apart.
  const auto none = score_text(*model, same.get(), *documents, {12, 5}, no_progress);
  ASSERT_TRUE(none.ok()) << none.error().message;
  EXPECT_EQ(none->divergence->kl_percentile(100), 0.0);
  EXPECT_EQ(none->divergence->top1_agreement(), 1.0);
  EXPECT_EQ(none->likelihood.nats_per_token(), none->reference->nats_per_token());
  const auto little = score_text(*model, exact.get(), *documents, {12, 5}, no_progress);
  ASSERT_TRUE(little.ok()) << little.error().message;
  EXPECT_EQ(little->divergence->tokens(), little->likelihood.tokens());
  EXPECT_GT(little->divergence->kl_mean(), 0.0);
  EXPECT_LT(little->divergence->kl_mean(), 0.01);
  EXPECT_GT(little->divergence->top1_agreement(), 0.9);
}

// Divergence grows with fewer bits. The bounds are wide, but a layout error would exceed them.
TEST(Eval, AModelDivergesMoreTheFewerItsBits) {
  const auto path = any_model();
  PROTEAN_REQUIRE_DATA(path);
  const TextFile text("two.jsonl", kTwoDocuments);
  const auto reference = open_model(path, "bf16");
  const auto documents = read_documents(text.path(), "", *reference->files().tokenizer);
  ASSERT_TRUE(documents.ok()) << documents.error().message;
  double before = 0.0;
  for (const auto& [dtype, most] : {std::pair{"w8", 0.01}, {"w4", 0.5}, {"w3", 3.0}}) {
    const auto quantised = open_model(path, dtype);
    const auto score = score_text(*quantised, reference.get(), *documents, {128, 64}, no_progress);
    ASSERT_TRUE(score.ok()) << score.error().message;
    EXPECT_GT(score->divergence->kl_mean(), before) << dtype;
    EXPECT_LT(score->divergence->kl_mean(), most) << dtype;
    before = score->divergence->kl_mean();
  }
}

// Spans of one precision give one greedy continuation, however they are cut.
TEST(Eval, ASchedulesCutsDoNotShow) {
  const auto path = any_model();
  PROTEAN_REQUIRE_DATA(path);
  const auto client = open_model(path, "bf16");
  const auto client_at = [&](Precision) -> Result<LocalClient*> { return client.get(); };
  const std::vector<Continuation> prompts{{"Once upon a time", "there was a king"},
                                          {"The old man said", ""}};
  const std::vector<PrecisionSchedule> schedules{{{Precision::kBf16, 24}},
                                                 {{Precision::kBf16, 5}, {Precision::kBf16, 19}},
                                                 {{Precision::kBf16, 6}}};
  const auto scores = score_schedules(client_at, prompts, schedules, no_progress);
  ASSERT_TRUE(scores.ok()) << scores.error().message;
  EXPECT_EQ((*scores)[0].rouge_l_baseline, 1.0);
  EXPECT_EQ((*scores)[1].rouge_l_baseline, 1.0);
  EXPECT_EQ((*scores)[1].output_tokens, (*scores)[0].output_tokens);
  EXPECT_LT((*scores)[2].rouge_l_baseline, 1.0) << "a quarter of the answer is not all of it";
  EXPECT_EQ((*scores)[0].references, 1);
}

TEST(Eval, BadFilesAreToldWithTheirLine) {
  const TextFile broken("broken.jsonl", "{\"text\": \"fine\"}\n{\"texte\": 3}\n");
  const TextFile no_json("no-json.jsonl", "{\"prompt\": \"fine\"}\n\nnot json\n");
  const auto path = any_model();
  PROTEAN_REQUIRE_DATA(path);
  const auto tokenizer = load_tokenizer(path);
  ASSERT_TRUE(tokenizer.ok());
  const auto documents = read_documents(broken.path(), "", **tokenizer);
  ASSERT_FALSE(documents.ok());
  EXPECT_NE(documents.error().message.find("line 2: there is no text in \"text\""),
            std::string::npos);
  const auto prompts = read_prompts(no_json.path());
  ASSERT_FALSE(prompts.ok());
  EXPECT_NE(prompts.error().message.find("line 3: this is no JSON object"), std::string::npos);
  EXPECT_FALSE(read_documents("/nowhere/at/all.txt", "", **tokenizer).ok());
  EXPECT_FALSE(read_documents("/", "", **tokenizer).ok()) << "a folder is no text";
}

}  // namespace
}  // namespace protean
