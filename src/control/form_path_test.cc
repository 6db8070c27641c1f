#include "control/form_path.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "control/scene_for_test.h"

namespace protean {
namespace {

int lowered_to(const FormBounds& bounds, const Form& form, Precision to) {
  int halves = 0;
  for (const LayerPrecision& layer : form.layer_precision) {
    for (const Component half : kLayerHalves) {
      halves += layer.of(half) == to && to != bounds.ladder.front() ? 1 : 0;
    }
  }
  return halves;
}

TEST(FormPath, UsesUpTheGentlestPrecisionFirstInTheOrderOfLayers) {
  FormBounds bounds = bounds_for_test(4);
  bounds.order = {{2}, {0}, {3}, {1}};
  const std::vector<Form> path = path_to(bounds, Precision::kW4);
  ASSERT_EQ(path.size(), 9U);
  EXPECT_EQ(path[1].layer_precision[2], (LayerPrecision{Precision::kW8, Precision::kW8}));
  EXPECT_EQ(path[1].layer_precision[0], (LayerPrecision{Precision::kBf16, Precision::kBf16}));
  EXPECT_EQ(lowered_to(bounds, path[4], Precision::kW8), 8);
  EXPECT_EQ(path[5].layer_precision[2], (LayerPrecision{Precision::kW4, Precision::kW4}));
  EXPECT_EQ(lowered_to(bounds, path[8], Precision::kW4), 8);
  for (std::size_t i = 1; i < path.size(); ++i) {
    EXPECT_GT(path[i].kv.blocks, path[i - 1].kv.blocks);
    EXPECT_LE(form_pages(bounds.spec, path[i], bounds.budget.page_bytes) + bounds.budget.reserve,
              bounds.budget.pages);
  }
  bounds.order = swap_targets(4, true);
  std::reverse(bounds.order.begin(), bounds.order.end());
  const std::vector<Form> halves = path_to(bounds, Precision::kW4);
  EXPECT_EQ(halves.size(), 17U);
  EXPECT_EQ(halves[1].layer_precision[3], (LayerPrecision{Precision::kBf16, Precision::kW8}));
}

// The last layers' pages are what their variant takes in addition to the old ones.
TEST(FormPath, TheEmbeddingsGoWithTheLastLayersOfARung) {
  FormBounds bounds = bounds_for_test(16);
  const std::vector<Form> path = path_to(bounds, Precision::kW4);
  const auto lowered_embeddings = std::find_if(
      path.begin(), path.end(), [](const Form& form) { return form.embeddings == Precision::kW8; });
  const auto at = lowered_embeddings - path.begin();
  EXPECT_EQ(lowered_to(bounds, *lowered_embeddings, Precision::kW8), 32);
  EXPECT_LT(at, 14) << "several layers at once";
  EXPECT_GT(at, 10);
  EXPECT_EQ(std::ssize(path), at + 1 + 16) << "and each at w4";
  EXPECT_EQ(path.back().embeddings, Precision::kW8);
  for (std::size_t i = 1; i < path.size(); ++i) {
    EXPECT_GT(path[i].kv.blocks, path[i - 1].kv.blocks);
  }
  bounds.floor = parse_quality_floor("15layers").value();
  EXPECT_EQ(path_to(bounds, Precision::kW4).back().embeddings, Precision::kBf16);
  bounds.floor = {};
  bounds.spec.vocab *= 4;
  bounds.budget.pages += 3 * component_pages(bounds.spec, Component::kEmbeddings, Precision::kBf16,
                                             bounds.budget.page_bytes);
  EXPECT_EQ(path_to(bounds, Precision::kW4).back().embeddings, Precision::kBf16)
      << "layers free too little for embeddings so large";
}

TEST(FormPath, EndsAtTheLowestPrecision) {
  FormBounds bounds = bounds_for_test(4);
  EXPECT_EQ(path_to(bounds, Precision::kBf16).size(), 1U);
  EXPECT_EQ(path_to(bounds, Precision::kW8).size(), 5U);
  bounds.ladder = {Precision::kBf16, Precision::kW8A8, Precision::kW4A8};
  EXPECT_EQ(form_path(bounds).size(), 9U);
}

TEST(FormPath, DoesNotGoBelowTheFloor) {
  FormBounds bounds = bounds_for_test(4);
  bounds.floor = parse_quality_floor("6bits").value();
  const std::vector<Form> six = path_to(bounds, Precision::kW4);
  EXPECT_EQ(lowered_to(bounds, six.back(), Precision::kW4), 4) << "8 and 4 bits, half and half";
  bounds.floor = parse_quality_floor("3layers").value();
  const std::vector<Form> three = path_to(bounds, Precision::kW4);
  EXPECT_EQ(lowered_to(bounds, three.back(), Precision::kW4), 6);
  EXPECT_EQ(three.back().layer_precision[3], bounds.full.layer_precision[3]);
  bounds.floor = parse_quality_floor("16bits").value();
  EXPECT_EQ(path_to(bounds, Precision::kW4).size(), 1U);
}

TEST(FormPath, KeepsTheLimitOfKvBlocks) {
  FormBounds bounds = bounds_for_test(4);
  bounds.most_kv_blocks = bounds.full.kv.blocks + 3;
  EXPECT_EQ(path_to(bounds, Precision::kW4).back().kv.blocks, bounds.most_kv_blocks);
}

TEST(FormsOffPath, LowerTheEmbeddingsAloneOrHalfOfTheLayersByTwoRungs) {
  FormBounds bounds = bounds_for_test(16);
  const auto labels = [&](std::vector<Precision> ladder) {
    bounds.ladder = std::move(ladder);
    const std::vector<Form> path = form_path(bounds);
    std::vector<std::string> found;
    for (const Form& form : forms_off_path(bounds, path)) {
      found.push_back(precision_label(form));
      EXPECT_GE(form.kv.blocks, path.front().kv.blocks) << found.back();
      EXPECT_LE(form.kv.blocks, path.back().kv.blocks) << found.back();
    }
    return found;
  };
  using Labels = std::vector<std::string>;
  const std::vector<Precision> ladder = bounds.ladder;
  EXPECT_EQ(labels(ladder), (Labels{"bf16:16+embeddings:w8", "bf16:8+w4:8"}));
  EXPECT_EQ(labels({Precision::kBf16, Precision::kW8, Precision::kW4, Precision::kW3}),
            (Labels{"bf16:16+embeddings:w8", "bf16:8+w4:8", "w8:8+w3:8"}));
  EXPECT_EQ(labels({Precision::kBf16, Precision::kW4}), Labels{"bf16:16+embeddings:w8"});
  EXPECT_EQ(labels({Precision::kBf16}), Labels{});
  bounds.embeddings_stay = true;
  EXPECT_EQ(labels(ladder), Labels{"bf16:8+w4:8"});
  bounds.floor = parse_quality_floor("0layers").value();
  EXPECT_EQ(labels(ladder), Labels{});
  bounds.floor = parse_quality_floor("8layers").value();
  EXPECT_EQ(labels(ladder), Labels{}) << "the path leads there";
}

TEST(FormsOffPath, LeaveTheEmbeddingsIfKvCannotLendTheirPages) {
  const FormBounds bounds = bounds_for_test(16, 0.03);
  const std::vector<Form> forms = forms_off_path(bounds, form_path(bounds));
  ASSERT_EQ(forms.size(), 1U);
  EXPECT_EQ(precision_label(forms.front()), "bf16:8+w4:8");
}

FormBounds mixed_bounds(std::vector<LayerPrecision> layers, std::vector<Precision> ladder) {
  FormBounds bounds = bounds_for_test(static_cast<int>(layers.size()));
  bounds.full.layer_precision = std::move(layers);
  bounds.ladder = std::move(ladder);
  return bounds;
}

TEST(FormPath, HalvesThatBeganLowerWaitUntilTheOthersHaveComeDownToThem) {
  constexpr LayerPrecision kHigh = {Precision::kW8, Precision::kW8};
  constexpr LayerPrecision kMixed = {Precision::kW4, Precision::kW8};
  constexpr LayerPrecision kLow = {Precision::kW4, Precision::kW4};
  constexpr LayerPrecision kLowest = {Precision::kW3, Precision::kW3};
  const FormBounds bounds =
      mixed_bounds({kLow, kHigh, kMixed, kLow}, {Precision::kW8, Precision::kW4, Precision::kW3});
  ASSERT_TRUE(validate(bounds).ok()) << validate(bounds).error().message;
  const std::vector<Form> path = path_to(bounds, Precision::kW3);
  using Layers = std::vector<LayerPrecision>;
  const std::vector<Layers> want = {{kLow, kHigh, kMixed, kLow},
                                    {kLow, kLow, kMixed, kLow},
                                    {kLow, kLow, kLow, kLow},
                                    {kLowest, kLow, kLow, kLow},
                                    {kLowest, kLowest, kLow, kLow},
                                    {kLowest, kLowest, kLowest, kLow},
                                    {kLowest, kLowest, kLowest, kLowest}};
  ASSERT_EQ(path.size(), want.size());
  for (std::size_t i = 0; i < path.size(); ++i) {
    EXPECT_EQ(path[i].layer_precision, want[i]) << to_string(path[i]);
    EXPECT_TRUE(i == 0 || path[i].kv.blocks > path[i - 1].kv.blocks);
  }
}

TEST(FormPath, RaisesNoHalfThatBeganLowerAndLetsItMultiplyFaster) {
  constexpr LayerPrecision kLow = {Precision::kW4, Precision::kW4};
  constexpr LayerPrecision kHigh = {Precision::kBf16, Precision::kBf16};
  const Form eight =
      path_to(mixed_bounds({kLow, kHigh}, {Precision::kBf16, Precision::kW8}), Precision::kW3)
          .back();
  EXPECT_EQ(precision_label(eight), "w8:1+w4:1");
  const Form fast =
      form_path(mixed_bounds({kLow, kHigh}, {Precision::kBf16, Precision::kW8A8, Precision::kW4A8}))
          .back();
  EXPECT_EQ(precision_label(fast), "w4a8:2");
}

TEST(FormPath, AFloorCountsLayersLoweredSinceTheStart) {
  constexpr LayerPrecision kLow = {Precision::kW4, Precision::kW4};
  constexpr LayerPrecision kHigh = {Precision::kW8, Precision::kW8};
  FormBounds bounds = mixed_bounds({kLow, kHigh, kHigh, kLow}, {Precision::kW8, Precision::kW4});
  bounds.floor = parse_quality_floor("1layers").value();
  const std::vector<Form> path = path_to(bounds, Precision::kW4);
  ASSERT_EQ(path.size(), 2U);
  EXPECT_EQ(precision_label(path.back()), "w8:1+w4:3");
}

TEST(QualityFloor, IsReadAndWritten) {
  for (const char* text : {"none", "6bits", "6.5bits", "8layers", "0layers"}) {
    const auto floor = parse_quality_floor(text);
    ASSERT_TRUE(floor.ok()) << text;
    EXPECT_EQ(to_string(*floor), text);
  }
  for (const char* text : {"", "6", "bits", "-1bits", "17bits", "1.5layers", "8 layers", "nanbits",
                           "infbits", "1e99layers", "-1layers", "6bits "}) {
    const auto floor = parse_quality_floor(text);
    ASSERT_FALSE(floor.ok()) << text;
    EXPECT_NE(floor.error().message.find("8layers"), std::string::npos);
  }
}

TEST(FormBounds, SayWhatIsWrong) {
  const auto complaint = [](const FormBounds& bounds) {
    const Status status = validate(bounds);
    return status.ok() ? std::string() : status.error().message;
  };
  const FormBounds good = bounds_for_test(4);
  EXPECT_EQ(complaint(good), "");
  FormBounds bounds = good;
  for (const auto& order : std::vector<std::vector<SwapTarget>>{
           {{0}, {1}, {2}, {2}},
           {{0}, {1}, {2}},
           {{0}, {1}, {2}, {3, Component::kMlp}},
       }) {
    bounds.order = order;
    EXPECT_NE(complaint(bounds).find("0 to 3 once"), std::string::npos) << complaint(bounds);
  }
  bounds = good;
  bounds.ladder = {Precision::kBf16, Precision::kW4, Precision::kW8};
  EXPECT_NE(complaint(bounds).find("w8 comes after w4"), std::string::npos) << complaint(bounds);
  bounds = good;
  bounds.ladder = {Precision::kW8, Precision::kW4};
  EXPECT_NE(complaint(bounds).find("at bf16"), std::string::npos) << complaint(bounds);
  bounds = good;
  bounds.full.layer_precision.pop_back();
  EXPECT_NE(complaint(bounds).find("3 layers"), std::string::npos) << complaint(bounds);
  bounds = good;
  bounds.budget.pages = bounds.budget.reserve + 3;
  EXPECT_NE(complaint(bounds).find("leave no page"), std::string::npos) << complaint(bounds);
}

}  // namespace
}  // namespace protean
