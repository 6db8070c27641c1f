// Small trained models: their answers are known, and every choice must be the reference's too.

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "base/test_data.h"
#include "model/checkpoint.h"
#include "tests/reference/reference_model.h"
#include "tests/reference/served_model.h"

namespace protean {
namespace {

constexpr TokenId kBos = 1;

// "Once upon a time, there was a little girl named Lily. She had a toy car that she loved ..."
const std::vector<TokenId> kLilyStory = {147, 201, 282,  215,  286,  598, 1662, 356,
                                         499, 826, 1363, 1145, 1652, 615, 242,  1482,
                                         951, 628, 499,  826,  872,  921, 318,  385};

TestSequence tell(const Checkpoint& checkpoint, Precision precision, int count) {
  ServedModel served(checkpoint, {.precision = precision, .threads = 2});
  TestSequence story{.tokens = {kBos}};
  for (BlockId block = 0; block < 20; ++block) {
    story.blocks.push_back((block * 7 + 3) % 64);
  }
  for (int i = 0; i < count; ++i) {
    served.step({{&story, 1}});
    story.tokens.push_back(story.drawn.back());
  }
  return story;
}

struct Told {
  std::string path;
  Precision precision;
};

void PrintTo(const Told& told, std::ostream* out) {
  *out << told.path;
}

class TrainedTinyStories : public testing::TestWithParam<Told> {};

TEST_P(TrainedTinyStories, GreedyFromBosIsTheKnownStory) {
  const auto path = test_data(GetParam().path);
  PROTEAN_REQUIRE_DATA(path);
  const auto checkpoint = open_checkpoint(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_TRUE((*checkpoint)->spec().tied_embeddings);
  const TestSequence story = tell(**checkpoint, GetParam().precision, 24);
  EXPECT_EQ(story.drawn, kLilyStory);
}

INSTANTIATE_TEST_SUITE_P(All, TrainedTinyStories,
                         testing::Values(Told{"models/tinystories-656k", Precision::kF32},
                                         Told{"models/tinystories-656k", Precision::kBf16},
                                         Told{"models/tinystories-656k-bf16", Precision::kF32},
                                         Told{"models/tinystories-656k-bf16", Precision::kBf16}),
                         [](const auto& info) {
                           return "model" + std::to_string(info.index) + "_" +
                                  std::string(to_string(info.param.precision));
                         });

// The served model chooses 200 tokens one by one. The reference sees all at once and must agree
// with every choice.
TEST(TrainedStories260K, EveryGreedyChoiceOfTheGgufIsTheReferences) {
  const auto path = test_data("models/stories260K/stories260Ktok512.gguf");
  PROTEAN_REQUIRE_DATA(path);
  const auto checkpoint = open_checkpoint(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->spec().rope.pairing, RopePairing::kAdjacent);
  const TestSequence story = tell(**checkpoint, Precision::kF32, 200);
  const ReferenceModel reference(**checkpoint, Precision::kF32);
  const auto logits = reference.logits(story.tokens);
  for (std::size_t i = 0; i + 1 < story.tokens.size(); ++i) {
    const auto best = std::max_element(logits[i].begin(), logits[i].end());
    ASSERT_EQ(story.tokens[i + 1], best - logits[i].begin()) << "after token " << i;
    const auto& served = story.logits.at(static_cast<int>(i));
    for (std::size_t id = 0; id < served.size(); ++id) {
      ASSERT_NEAR(double{served[id]}, logits[i][id], 1e-3) << "after token " << i;
    }
  }
}

}  // namespace
}  // namespace protean
