#include "control/plan_morph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "base/repetitions_for_test.h"
#include "control/scene_for_test.h"
#include "cost/kv_blocks_for_test.h"

namespace protean {
namespace {

constexpr std::array kAll = {Precision::kBf16, Precision::kW8, Precision::kW4, Precision::kW3};

int resizes(const Morph& morph) {
  return static_cast<int>(
      std::count_if(morph.steps.begin(), morph.steps.end(),
                    [](const MorphStep& step) { return std::holds_alternative<ResizeKv>(step); }));
}

bool swaps_embeddings(const Morph& morph) {
  return std::any_of(morph.steps.begin(), morph.steps.end(), [](const MorphStep& step) {
    const auto* swap = std::get_if<SwapComponent>(&step);
    return swap != nullptr && swap->component == Component::kEmbeddings;
  });
}

// Returns the free pages of the fullest device that the step concerns.
std::int64_t free_for(const MorphStep& step, const Form& form, const FormBounds& bounds) {
  const auto* const swap = std::get_if<SwapComponent>(&step);
  std::int64_t most = 0;
  for (std::size_t device = 0; device < form.group.size(); ++device) {
    if (swap == nullptr || !form.group[device].of(swap->layer, swap->component).empty()) {
      most = std::max(
          most, pages_on(bounds.spec, form, static_cast<int>(device), bounds.budget.page_bytes));
    }
  }
  return bounds.budget.pages - most;
}

// Every prefix is legal, fits and keeps the reserve; every step finds the pages to prepare it; no
// more blocks go meanwhile than may be lent, or the embeddings need.
void expect_sound(const Morph& morph, const Form& from, const Form& to, const FormBounds& bounds,
                  std::int64_t idle_blocks = 0) {
  std::vector<DeviceSpec> devices;
  for (const Holding& holding : from.group) {
    devices.push_back({.id = holding.device});
  }
  const PageBudget& budget = bounds.budget;
  Form form = from;
  for (const MorphStep& step : morph.steps) {
    SCOPED_TRACE(to_string(step));
    EXPECT_LE(pages_to_prepare(bounds.spec, form, step, budget.page_bytes),
              free_for(step, form, bounds));
    const Form next = after(form, step);
    EXPECT_NE(next, form) << "a step that does nothing";
    form = next;
    const Status legal = validate(form, bounds.spec, devices);
    EXPECT_TRUE(legal.ok()) << legal.error().message;
    EXPECT_LE(form_pages(bounds.spec, form, budget.page_bytes) + budget.reserve, budget.pages);
    EXPECT_LE(form.kv.blocks, std::max(from.kv.blocks, to.kv.blocks));
    std::int64_t lent = idle_blocks;
    if (swaps_embeddings(morph)) {
      const std::int64_t pages =
          component_pages(bounds.spec, Component::kEmbeddings, to.embeddings, budget.page_bytes);
      lent += kv_blocks_in(bounds.spec, form.kv, pages, budget.page_bytes) + 1;
    }
    EXPECT_GE(form.kv.blocks, std::min(from.kv.blocks, to.kv.blocks) - lent);
  }
  EXPECT_EQ(form, to);
}

class PlanMorph : public ::testing::Test {
 protected:
  Form random_form() {
    Form form = bounds_.full;
    // Sometimes alike in all layers, sometimes wild.
    const bool alike = random_() % 3 == 0;
    const Precision one = kAll[random_() % kAll.size()];
    for (LayerPrecision& layer : form.layer_precision) {
      for (const Component half : kLayerHalves) {
        layer.of(half) = alike ? one : kAll[random_() % kAll.size()];
      }
    }
    const PageBudget& budget = bounds_.budget;
    const std::int64_t most = kv_blocks_in(
        bounds_.spec, form.kv,
        budget.pages - budget.reserve - weight_pages(bounds_.spec, form, budget.page_bytes),
        budget.page_bytes);
    form.kv.blocks = random_() % 2 == 0 ? most : 1 + static_cast<std::int64_t>(random_()) % most;
    return form;
  }

  std::mt19937 random_{7};
  FormBounds bounds_ = bounds_for_test();
};

TEST_F(PlanMorph, EveryPrefixOfAnyMorphIsSound) {
  for (int i = 0; i < repetitions(500); ++i) {
    bounds_ = bounds_for_test(2 + static_cast<int>(random_() % 20),
                              0.01 + 0.1 * static_cast<double>(random_() % 9));
    const Form from = random_form();
    const Form to = random_form();
    bounds_.order = swap_targets(bounds_.spec.layers, random_() % 2 == 0);
    std::shuffle(bounds_.order.begin(), bounds_.order.end(), random_);
    const auto idle = static_cast<std::int64_t>(random_()) % from.kv.blocks;
    const std::int64_t lendable =
        std::array<std::int64_t, 3>{0, 1, idle}[static_cast<std::size_t>(i % 3)];
    const auto morph = plan_morph(from, to, bounds_, lendable);
    ASSERT_TRUE(morph.ok()) << morph.error().message << "\n"
                            << to_string(from) << "\n"
                            << to_string(to);
    expect_sound(*morph, from, to, bounds_, lendable);
    EXPECT_LE(resizes(*morph), 12) << to_string(from) << "\n" << to_string(to);
    if (HasFailure()) {
      FAIL() << to_string(from) << "\n" << to_string(to);
    }
  }
}

// KV then lends what the smallest swap lacks, and has it again once swaps have freed as much.
TEST_F(PlanMorph, NoPageHasToBeKeptFreeIfKvHasPagesToLend) {
  int planned = 0;
  int lent = 0;
  for (int i = 0; i < repetitions(300); ++i) {
    bounds_ = bounds_for_test(2 + static_cast<int>(random_() % 20),
                              0.05 + 0.1 * static_cast<double>(random_() % 8));
    PageBudget& budget = bounds_.budget;
    const std::int64_t largest = budget.reserve;
    budget.pages -= budget.reserve - static_cast<std::int64_t>(random_() % 5);
    budget.reserve = 0;
    bounds_.full.kv.blocks = 1;
    if (budget.pages - form_pages(bounds_.spec, bounds_.full, budget.page_bytes) < largest) {
      continue;  // KV could not lend it
    }
    Form from = random_form();
    Form to = random_form();
    if (i % 3 == 0) {  // as a policy goes
      const std::vector<Form> path = path_to(bounds_, Precision::kW8);
      from = path.front();
      to = path[1 + random_() % (path.size() - 1)];
      to.embeddings = from.embeddings;
      to = with_fitting_kv(bounds_, to);
    }
    bounds_.order = swap_targets(bounds_.spec.layers, random_() % 2 == 0);
    std::shuffle(bounds_.order.begin(), bounds_.order.end(), random_);
    for (const auto& [begin, end] : {std::pair(from, to), std::pair(to, from)}) {
      const auto morph = plan_morph(begin, end, bounds_);
      ASSERT_TRUE(morph.ok()) << morph.error().message << "\n"
                              << to_string(begin) << "\n"
                              << to_string(end);
      // A page of every layer, or none.
      const std::int64_t most =
          kv_blocks_in(bounds_.spec, begin.kv, largest + bounds_.spec.layers, budget.page_bytes) +
          1;
      expect_sound(*morph, begin, end, bounds_, most);
      Form form = begin;
      std::int64_t fewest = std::min(begin.kv.blocks, end.kv.blocks);
      for (const MorphStep& step : morph->steps) {
        form = after(std::move(form), step);
        fewest = std::min(fewest, form.kv.blocks);
      }
      lent += fewest < std::min(begin.kv.blocks, end.kv.blocks) ? 1 : 0;
      ++planned;
    }
    if (HasFailure()) {
      FAIL() << to_string(from) << "\n" << to_string(to);
    }
  }
  EXPECT_GT(planned, repetitions(200));
  EXPECT_GT(lent, repetitions(50));
}

// A group has more blocks than one of its devices could have alone, and its morphs use them all.
TEST_F(PlanMorph, MorphsOfGroupsAreAsSound) {
  const std::vector<DeviceId> four = {DeviceId{0}, DeviceId{1}, DeviceId{2}, DeviceId{3}};
  const std::int64_t alone = bounds_.full.kv.blocks;
  for (const Division& division : {Division{2, {16}}, Division{4, {16}}, Division{1, {8, 8}},
                                   Division{1, {10, 6}}, Division{2, {8, 8}}}) {
    FormBounds bounds = bounds_;
    // Both ends of a pipeline hold the embeddings, but layers make room for them at one of them.
    bounds.embeddings_stay = division.stage_layers.size() > 1;
    bounds.full.shards = 4;
    bounds.full = divide(bounds.full, division,
                         std::span(four).first(static_cast<std::size_t>(division.devices())));
    bounds.budget.reserve = reserve_pages(bounds.spec, bounds.ladder, bounds.budget.page_bytes,
                                          share_of(bounds.full, bounds.full.group.front()));
    bounds.full = form_path(bounds).front();
    EXPECT_GT(bounds.full.kv.blocks, alone * 3 / 2) << to_string(bounds.full);
    const std::vector<Form> path = form_path(bounds);
    EXPECT_GT(path.back().kv.blocks, bounds.full.kv.blocks);
    for (const Form& to : {path[path.size() / 2], path.back()}) {
      for (const auto& [from, end] : {std::pair(bounds.full, to), std::pair(to, bounds.full)}) {
        const auto morph = plan_morph(from, end, bounds);
        ASSERT_TRUE(morph.ok()) << morph.error().message;
        expect_sound(*morph, from, end, bounds);
      }
    }
  }
}

TEST_F(PlanMorph, SoAreThoseOfTheEmbeddingsWhereTheCacheHasPagesToLend) {
  int swapped = 0;
  for (int i = 0; i < repetitions(200); ++i) {
    Form from = random_form();
    Form to = random_form();
    from.embeddings = random_() % 2 == 0 ? Precision::kW8 : Precision::kBf16;
    to.embeddings = random_() % 2 == 0 ? Precision::kW8 : Precision::kBf16;
    const auto fit = [&](Form& form) {
      const std::int64_t pages = bounds_.budget.pages - bounds_.budget.reserve -
                                 weight_pages(bounds_.spec, form, bounds_.budget.page_bytes);
      form.kv.blocks = std::min(
          form.kv.blocks, kv_blocks_in(bounds_.spec, form.kv, pages, bounds_.budget.page_bytes));
    };
    fit(from);
    fit(to);
    const auto morph = plan_morph(from, to, bounds_);
    ASSERT_TRUE(morph.ok()) << morph.error().message << "\n"
                            << to_string(from) << "\n"
                            << to_string(to);
    expect_sound(*morph, from, to, bounds_);
    EXPECT_EQ(swaps_embeddings(*morph), from.embeddings != to.embeddings);
    swapped += from.embeddings != to.embeddings ? 1 : 0;
  }
  EXPECT_GT(swapped, repetitions(50));
}

// Alone, without layers that make room.
TEST_F(PlanMorph, TheCacheLendsTheEmbeddingsItsPagesAndHasThemAgain) {
  Form lower = bounds_.full;
  lower.embeddings = Precision::kW8;
  const auto morph = plan_morph(bounds_.full, lower, bounds_);
  ASSERT_TRUE(morph.ok()) << morph.error().message;
  ASSERT_EQ(morph->steps.size(), 3U);
  EXPECT_EQ(to_string(morph->steps[1]), "embeddings to w8");
  expect_sound(*morph, bounds_.full, lower, bounds_);
  bounds_ = bounds_for_test(16, 0.05);
  lower = bounds_.full;
  lower.embeddings = Precision::kW8;
  const auto refused = plan_morph(bounds_.full, lower, bounds_);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("embeddings to w8 lacks"), std::string::npos)
      << refused.error().message;
}

// A form that an operator wished, whose KV is too small to lend the embeddings their pages.
TEST_F(PlanMorph, WithoutRoomForTheEmbeddingsTheLayersGoAlone) {
  PageBudget& budget = bounds_.budget;
  Form from = path_to(bounds_, Precision::kW8).back();
  from.embeddings = Precision::kBf16;
  budget.pages = weight_pages(bounds_.spec, from, budget.page_bytes) + budget.reserve +
                 2 * bounds_.spec.layers;
  from.kv.blocks = kv_blocks_that_fit(bounds_, from);
  Form to = path_to(bounds_, Precision::kW4).back();
  Form one = from;
  one.embeddings = Precision::kW8;
  EXPECT_FALSE(plan_morph(from, one, bounds_).ok());
  EXPECT_TRUE(plan_with_or_without_embeddings(from, one, bounds_)->steps.empty());
  to.embeddings = Precision::kW8;
  to = with_fitting_kv(bounds_, to);
  const Morph morph = plan_with_or_without_embeddings(from, to, bounds_).value();
  const Form reached = after(from, morph);
  EXPECT_EQ(reached.layer_precision, to.layer_precision);
  expect_sound(morph, from, reached, bounds_);
  EXPECT_EQ(reached.embeddings, Precision::kW8) << "layers at w4 make room";
}

// And the cache grows on the way, but never shrinks.
TEST_F(PlanMorph, LayersMakeRoomForTheEmbeddingsOfAPath) {
  for (const std::int64_t idle : {0, 1}) {
    const std::vector<Form> path = path_to(bounds_, Precision::kW8);
    ASSERT_EQ(path.back().embeddings, Precision::kW8);
    for (std::size_t i = 0; i + 1 < path.size(); ++i) {
      const auto morph = plan_morph(path[i], path.back(), bounds_, idle);
      ASSERT_TRUE(morph.ok()) << morph.error().message;
      EXPECT_TRUE(swaps_embeddings(*morph));
      std::int64_t blocks = path[i].kv.blocks;
      for (const MorphStep& step : morph->steps) {
        if (const auto* resize = std::get_if<ResizeKv>(&step)) {
          EXPECT_GT(resize->blocks, blocks) << i;
          blocks = resize->blocks;
        }
      }
      expect_sound(*plan_morph(path.back(), path[i], bounds_), path.back(), path[i], bounds_);
    }
  }
}

TEST_F(PlanMorph, KvGrowsBeforeTheLastLayerIsLowered) {
  const std::vector<Form> path = path_to(bounds_, Precision::kW8);
  const auto morph = plan_morph(path.front(), path.back(), bounds_);
  ASSERT_TRUE(morph.ok());
  expect_sound(*morph, path.front(), path.back(), bounds_);
  const auto first = std::find_if(morph->steps.begin(), morph->steps.end(), [](const auto& step) {
    return std::holds_alternative<ResizeKv>(step);
  });
  EXPECT_LT(first - morph->steps.begin(), 16) << "of 33 swaps";
  EXPECT_GE(resizes(*morph), 3);
}

// So that three are prepared during one step, or sixteen, wherever on the path the cache grows.
TEST_F(PlanMorph, GrowthLeavesThePagesThatTheNextSwapsTake) {
  const std::vector<Form> path = path_to(bounds_, Precision::kW8);
  for (const auto& [idle, swaps] : {std::pair{0, 3}, {1, kSwapsAtOnce}}) {
    const auto morph = plan_morph(path.front(), path.back(), bounds_, idle);
    ASSERT_TRUE(morph.ok());
    Form form = path.front();
    for (auto step = morph->steps.begin(); step != morph->steps.end(); ++step) {
      form = after(std::move(form), *step);
      if (std::holds_alternative<SwapComponent>(*step)) {
        continue;
      }
      std::int64_t taken = 0;
      int found = 0;
      for (auto next = step + 1; next != morph->steps.end() && found < swaps; ++next) {
        if (std::holds_alternative<SwapComponent>(*next)) {
          taken += pages_to_prepare(bounds_.spec, form, *next, bounds_.budget.page_bytes);
          ++found;
        }
      }
      const std::int64_t used = form_pages(bounds_.spec, form, bounds_.budget.page_bytes);
      EXPECT_LE(used + taken, bounds_.budget.pages) << swaps << ", " << to_string(*step);
    }
  }
}

TEST_F(PlanMorph, IdleBlocksLendTheirPagesToTheFirstSwaps) {
  bounds_ = bounds_for_test(16, 0.3);
  const std::vector<Form> path = path_to(bounds_, Precision::kW8);
  const std::int64_t blocks = path.front().kv.blocks;
  const auto first_shrink = [&](std::int64_t idle) {
    const Morph morph = plan_morph(path.front(), path.back(), bounds_, idle).value();
    expect_sound(morph, path.front(), path.back(), bounds_, idle);
    const auto* resize = std::get_if<ResizeKv>(&morph.steps.front());
    return resize == nullptr ? 0 : blocks - resize->blocks;
  };
  EXPECT_EQ(first_shrink(blocks / 2), blocks / 2);
  EXPECT_EQ(first_shrink(1), 0) << "too little for another swap";
  const std::int64_t most = first_shrink(blocks);
  EXPECT_GT(most, blocks / 2);
  EXPECT_LT(most, blocks);
  bounds_ = bounds_for_test(16, 0.8);
  const std::vector<Form> wide = path_to(bounds_, Precision::kW8);
  const Morph morph =
      plan_morph(wide.front(), wide.back(), bounds_, wide.front().kv.blocks).value();
  std::int64_t pages = 0;
  Form form = wide.front();
  for (std::size_t i = 1; i <= kSwapsAtOnce; ++i) {
    ASSERT_TRUE(std::holds_alternative<SwapComponent>(morph.steps[i])) << "all of them at once";
    pages += pages_to_prepare(bounds_.spec, form, morph.steps[i], bounds_.budget.page_bytes);
  }
  form = after(std::move(form), morph.steps.front());
  const std::int64_t free =
      bounds_.budget.pages - form_pages(bounds_.spec, form, bounds_.budget.page_bytes);
  EXPECT_GE(free, pages);
  EXPECT_LE(free, pages + bounds_.spec.layers) << "and no more than they take";
}

TEST_F(PlanMorph, LayersGoDownInTheirOrderAndUpInItsReverse) {
  for (const bool halves : {false, true}) {
    std::vector<SwapTarget> order = swap_targets(bounds_.spec.layers, halves);
    std::shuffle(order.begin(), order.end(), random_);
    bounds_.order = order;
    const std::vector<Form> path = path_to(bounds_, Precision::kW8);
    const auto swapped = [&](const Form& from, const Form& to) {
      std::vector<SwapTarget> found;
      const auto morph = plan_morph(from, to, bounds_);
      for (const MorphStep& step : morph.value().steps) {
        const auto* swap = std::get_if<SwapComponent>(&step);
        if (swap != nullptr && swap->component == Component::kEmbeddings) {
          EXPECT_EQ(found.size(), swap->to == Precision::kBf16 ? 0 : order.size());
        } else if (swap != nullptr) {
          const SwapTarget target = {swap->layer,
                                     halves ? std::optional(swap->component) : std::nullopt};
          if (found.empty() || found.back() != target) {
            found.push_back(target);
          }
        }
      }
      return found;
    };
    EXPECT_EQ(swapped(path.front(), path.back()), order);
    std::reverse(order.begin(), order.end());
    EXPECT_EQ(swapped(path.back(), path.front()), order);
  }
}

TEST_F(PlanMorph, NothingToDoIsNoStep) {
  const auto morph = plan_morph(bounds_.full, bounds_.full, bounds_);
  ASSERT_TRUE(morph.ok());
  EXPECT_TRUE(morph->steps.empty());
}

TEST_F(PlanMorph, SaysHowManyBytesAreMissing) {
  Form more = bounds_.full;
  const PageBudget& budget = bounds_.budget;
  const std::int64_t used = form_pages(bounds_.spec, more, budget.page_bytes);
  more.kv.blocks += 100;
  const auto morph = plan_morph(bounds_.full, more, bounds_);
  ASSERT_FALSE(morph.ok());
  EXPECT_EQ(morph.error().code, ErrorCode::kExhausted);
  const std::int64_t wanted = form_pages(bounds_.spec, more, budget.page_bytes);
  const std::string bytes =
      format_bytes((wanted - used - (budget.pages - budget.reserve - used)) * budget.page_bytes);
  EXPECT_NE(morph.error().message.find(bytes), std::string::npos) << morph.error().message;
}

// KV that has one page a layer can lend none.
TEST_F(PlanMorph, RefusesASwapThatHasNoRoomBesideTheOldVariant) {
  bounds_.budget.reserve = 0;
  bounds_.budget.pages =
      weight_pages(bounds_.spec, bounds_.full, bounds_.budget.page_bytes) + bounds_.spec.layers;
  bounds_.full = path_to(bounds_, Precision::kBf16).front();
  Form lower = bounds_.full;
  lower.layer_precision[3].mlp = Precision::kW8;
  const auto morph = plan_morph(bounds_.full, lower, bounds_);
  ASSERT_FALSE(morph.ok());
  EXPECT_EQ(morph.error().code, ErrorCode::kExhausted);
  EXPECT_NE(morph.error().message.find("layer 3 mlp to w8 lacks"), std::string::npos)
      << morph.error().message;
}

TEST_F(PlanMorph, RefusesWhatIsNoMorph) {
  Form other = bounds_.full;
  other.kv.block_tokens = 32;
  EXPECT_FALSE(plan_morph(bounds_.full, other, bounds_).ok());
  other = bounds_.full;
  other.layer_precision.pop_back();
  EXPECT_FALSE(plan_morph(bounds_.full, other, bounds_).ok());
  other = bounds_.full;
  other.kv.blocks = 0;
  const auto morph = plan_morph(bounds_.full, other, bounds_);
  ASSERT_FALSE(morph.ok());
  EXPECT_EQ(morph.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace protean
