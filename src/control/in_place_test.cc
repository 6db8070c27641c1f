#include "control/in_place.h"

#include <gtest/gtest.h>

#include <string>

namespace protean {
namespace {

constexpr std::int64_t kBytesOfPage = 4096;

ModelSpec spec_for_test() {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.layers = 2;
  spec.hidden = 64;
  spec.ffn = 128;
  spec.vocab = 100;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
  return spec;
}

Form form_at(Precision precision, KvPrecision kv = KvPrecision::kBf16) {
  return single_device_form(spec_for_test(), precision, DeviceId{0},
                            {.precision = kv, .block_tokens = 8, .blocks = 20});
}

// An engine that was loaded at the first of the ladder's precisions.
struct InPlace {
  explicit InPlace(std::vector<Precision> ladder) {
    bounds.spec = spec_for_test();
    bounds.full = form_at(ladder.front());
    bounds.ladder = std::move(ladder);
    bounds.budget = {.page_bytes = kBytesOfPage,
                     .pages = form_pages(bounds.spec, bounds.full, kBytesOfPage)};
  }
  Result<FormWish> to(const FormToServe& wanted) const {
    return wish_in_place(bounds, {bounds.full, 100}, wanted);
  }
  std::string why_not(const Form& wanted) const {
    const auto wish = to({wanted, 100});
    return wish.ok() ? "" : wish.error().message;
  }
  FormBounds bounds;
};

TEST(InPlaceTest, WeightsThatAreLowerTakeFewerPagesAndTheWayBackTakesThemAgain) {
  const InPlace engine({Precision::kBf16, Precision::kW8A8, Precision::kW4A8});
  for (const Precision precision : {Precision::kW8, Precision::kW8A8, Precision::kW4A8}) {
    const Form wanted = form_at(precision);
    const auto wish = engine.to({wanted, 100});
    ASSERT_TRUE(wish.ok()) << wish.error().message;
    EXPECT_EQ(wish->layers, wanted.layer_precision);
    EXPECT_EQ(wish->embeddings, wanted.embeddings);
    EXPECT_EQ(wish->rest_pages, form_pages(engine.bounds.spec, wanted, kBytesOfPage));
    EXPECT_LT(*wish->rest_pages, engine.bounds.budget.pages);
  }
  const auto back = engine.to({engine.bounds.full, 100});
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->rest_pages, engine.bounds.budget.pages);
}

TEST(InPlaceTest, NeverTakesMoreThanWasLoadedNorBreaksThePromisedLength) {
  const InPlace engine({Precision::kBf16, Precision::kW8});
  Form larger = form_at(Precision::kBf16);
  larger.kv.blocks *= 10;
  EXPECT_EQ(engine.to({larger, 100})->rest_pages, engine.bounds.budget.pages);
  EXPECT_EQ(engine.to({form_at(Precision::kW8), 99})->rest_pages, engine.bounds.budget.pages);
  const std::int64_t pages = engine.bounds.budget.pages - 1;
  EXPECT_EQ(engine.to({form_at(Precision::kW8), 100, pages * kBytesOfPage - 1})->rest_pages, pages)
      << "pages that this form leaves free are for lower ones";
}

TEST(InPlaceTest, SaysWhyASecondCopyIsNeeded) {
  const InPlace full({Precision::kBf16, Precision::kW8A8, Precision::kW4A8});
  EXPECT_EQ(full.why_not(form_at(Precision::kW8, KvPrecision::kInt8)), "KV goes from bf16 to int8");
  Form divided = form_at(Precision::kW8);
  divided.shards = 2;
  EXPECT_EQ(full.why_not(divided), "devices share the model in another way");
  const InPlace lower({Precision::kW8, Precision::kW4A8});
  EXPECT_EQ(lower.why_not(form_at(Precision::kBf16)),
            "layers that were loaded at w8 cannot go to bf16");
  EXPECT_EQ(lower.why_not(form_at(Precision::kW4)), "");
}

TEST(InPlaceTest, ConfigurationsDifferInNothingButWeights) {
  const std::vector<Precision> precisions = {Precision::kBf16, Precision::kW8};
  const Configuration now;
  EXPECT_TRUE(morphs_between(now, {.weights = Precision::kW8}, precisions));
  EXPECT_FALSE(morphs_between(now, {.weights = Precision::kW4}, precisions));
  EXPECT_FALSE(morphs_between(now, {.tensor = 2, .weights = Precision::kW8}, precisions));
  EXPECT_FALSE(
      morphs_between(now, {.weights = Precision::kW8, .kv = KvPrecision::kInt8}, precisions));
  EXPECT_FALSE(morphs_between(
      now,
      {.weights = Precision::kW8, .pruning = {.kind = PruningKind::kStructured, .percent = 25}},
      precisions));
}

}  // namespace
}  // namespace protean
