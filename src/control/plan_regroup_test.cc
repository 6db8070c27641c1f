#include "control/plan_regroup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace protean {
namespace {

constexpr int kShards = 2;
constexpr std::int64_t kPageBytes = 4096;

ModelSpec small_model(int layers) {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.layers = layers;
  spec.hidden = 64;
  spec.ffn = 128;
  spec.vocab = 128;
  spec.attention = {.heads = 4, .kv_heads = 4, .head_dim = 16};
  return spec;
}

Form replica_of(const ModelSpec& spec, std::int64_t blocks) {
  Form form =
      single_device_form(spec, Precision::kF32, DeviceId{0},
                         {.precision = KvPrecision::kF32, .block_tokens = 4, .blocks = blocks});
  form.shards = kShards;
  form.group = {whole_model(spec.layers, kShards, DeviceId{0})};
  return form;
}

PageBudget exactly(const ModelSpec& spec, const Form& form) {
  PageBudget budget{.page_bytes = kPageBytes};
  budget.pages = form_pages(spec, form, kPageBytes);
  return budget;
}

// Returns true if replicas with so many blocks can become a group by layers and part.
bool fits(const ModelSpec& spec, Form home, std::int64_t blocks, const PageBudget& budget) {
  home.kv.blocks = blocks;
  const Form joined = joined_form(home, 2);
  const Form wide = divided_form(home, 2, GroupBy::kLayers).value();
  return plan_regroup(spec, joined, wide, budget).ok() &&
         plan_regroup(spec, wide, joined, budget).ok();
}

TEST(KvBlocksToRegroup, KvStaysIfDroppedWeightsMakeRoomForALayersKv) {
  const ModelSpec spec = small_model(4);
  const Form home = replica_of(spec, 24);
  EXPECT_EQ(kv_blocks_to_regroup(spec, home, 2, GroupBy::kLayers, exactly(spec, home)).value(), 24);
}

TEST(KvBlocksToRegroup, KvShrinksAsFarAsTheWayNeeds) {
  for (const int layers : {3, 4, 5}) {
    const ModelSpec spec = small_model(layers);
    const Form home = replica_of(spec, 1000);
    const PageBudget budget = exactly(spec, home);
    ASSERT_FALSE(fits(spec, home, 1000, budget));
    const auto blocks = kv_blocks_to_regroup(spec, home, 2, GroupBy::kLayers, budget);
    ASSERT_TRUE(blocks.ok()) << blocks.error().message;
    EXPECT_TRUE(fits(spec, home, *blocks, budget));
    EXPECT_FALSE(fits(spec, home, *blocks + 1, budget));
    EXPECT_GT(*blocks, 1000 * layers / (layers + 2)) << "two layers' KV at most";
  }
}

// A pipeline of two replicas, on the pages of one each, all of which its KV takes.
struct FullPair {
  ModelSpec spec = small_model(16);
  Form home = replica_of(spec, 40);
  PageBudget budget = exactly(spec, home);
  Form form = divided_form(home, 2, GroupBy::kLayers).value();

  FullPair() { form.kv.blocks = kv_blocks_that_fit(spec, form, budget.pages, kPageBytes); }
};

// Pipelines whose KV fills all pages become one. Their stages take KV of a layer and give back that
// of another in turn: the weights that they drop make room for one layer's KV, not for two.
TEST(KvBlocksToRegroup, FullPipelinesBecomeOneLayerByLayer) {
  const FullPair pair;
  ASSERT_GT(pair.form.kv.blocks, 2 * pair.home.kv.blocks);
  EXPECT_EQ(kv_blocks_to_regroup(pair.spec, pair.form, 2, GroupBy::kLayers, pair.budget).value(),
            pair.form.kv.blocks);
}

TEST(KvBlocksToRegroup, AChangeThatTurnsHasTheWayBack) {
  const FullPair pair;
  const ModelSpec& spec = pair.spec;
  const PageBudget& budget = pair.budget;
  const Form joined = joined_form(pair.form, 2);
  const Form wide = divided_form(pair.form, 2, GroupBy::kLayers).value();
  const std::vector<MorphStep> steps = plan_regroup(spec, joined, wide, budget).value().steps;
  std::vector<MorphStep> back = plan_regroup(spec, wide, joined, budget).value().steps;
  ASSERT_EQ(back.size(), steps.size());
  Form form = joined;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    form = after(std::move(form), steps[i]);
    const auto forth = plan_regroup(spec, form, wide, budget);
    const auto turned = plan_regroup(spec, form, joined, budget);
    ASSERT_TRUE(forth.ok() && turned.ok()) << i;
    EXPECT_EQ(forth->steps,
              std::vector(steps.begin() + static_cast<std::ptrdiff_t>(i) + 1, steps.end()));
    EXPECT_EQ(turned->steps,
              std::vector(back.end() - static_cast<std::ptrdiff_t>(i) - 1, back.end()));
  }
}

// Pipelines of so many stages each, whose KV takes all pages of a device that a replica alone
// fills.
struct FullPipelines {
  ModelSpec spec;
  PageBudget budget;
  std::vector<Form> homes;

  FullPipelines(int layers, const std::vector<int>& stages) : spec(small_model(layers)) {
    const Form replica = replica_of(spec, 40);
    budget = exactly(spec, replica);
    for (const int count : stages) {
      Form& home = homes.emplace_back(joined_form(replica, 1));
      if (count > 1) {
        home = divided_form(replica, count, GroupBy::kLayers).value();
        home.kv.blocks = kv_blocks_that_fit(spec, home, budget.pages, kPageBytes);
      }
    }
  }
};

int layers_of(const Holding& holding) {
  return static_cast<int>(std::ranges::count_if(
      holding.layers, [](const Holding::Layer& layer) { return !layer.empty(); }));
}

// Stages have equally many layers, or one more.
void expect_even(const Form& wide) {
  std::vector<int> held;
  for (const Holding& holding : wide.group) {
    held.push_back(layers_of(holding));
  }
  EXPECT_LE(std::ranges::max(held), std::ranges::min(held) + 1);
}

int layers_fetched(const Form& joined, const Form& wide) {
  int fetched = 0;
  for (std::size_t device = 0; device < wide.group.size(); ++device) {
    for (std::size_t layer = 0; layer < wide.layer_precision.size(); ++layer) {
      const bool had = !joined.group[device].layers[layer].empty();
      fetched += !had && !wide.group[device].layers[layer].empty() ? 1 : 0;
    }
  }
  return fetched;
}

// Walks from one form to the other: a whole copy of everything remains, and all fits.
void expect_legal(const FullPipelines& full, Form form, const Form& to) {
  const Morph morph = plan_regroup(full.spec, form, to, full.budget).value();
  for (const MorphStep& step : morph.steps) {
    form = after(std::move(form), step);
    EXPECT_LE(form_pages(full.spec, form, kPageBytes), full.budget.pages) << to_string(step);
    for (int layer = 0; layer < full.spec.layers; ++layer) {
      for (const Component component :
           {Component::kEmbeddings, Component::kAttention, Component::kMlp}) {
        EXPECT_FALSE(copies_of(form.group, layer, component, kShards).empty()) << to_string(step);
      }
    }
  }
  EXPECT_EQ(form, to);
}

// The sizes that KunServe's plan merges, which takes the two smallest groups each time.
TEST(Rebalance, PipelinesOfUnequalLengthBecomeOneOfEvenStages) {
  for (const std::vector<int>& stages : std::vector<std::vector<int>>{
           {1, 2}, {2, 1}, {1, 1, 2}, {2, 3}, {2, 4}, {4, 3}, {1, 2, 3}, {4, 5}}) {
    int devices = 0;
    for (const int count : stages) {
      devices += count;
    }
    for (const int layers : {2 * devices, 3 * devices, 4 * devices}) {
      SCOPED_TRACE(fmt::format("{} and {} stages, {} layers", stages[0], stages[1], layers));
      const FullPipelines full(layers, stages);
      const Form wide = rebalanced_form(full.spec, full.homes, full.budget).value();
      const Form joined = joined_form(full.homes);
      expect_even(wide);
      if (layers == 4 * devices) {  // else, layers being whole, stages may have to fetch some
        EXPECT_EQ(layers_fetched(joined, wide), 0) << "no weights move";
      }
      const Result<Form> fits = rebalanced_form_in(full.spec, full.homes, full.budget);
      if (fits.ok()) {
        expect_legal(full, joined, wide);
        expect_legal(full, wide, joined);
        EXPECT_GT(kv_blocks_that_fit(full.spec, wide, full.budget.pages, kPageBytes),
                  joined.kv.blocks);
      }
    }
  }
}

TEST(Rebalance, FullPipelinesOfManyLayersNeedNoSmallerKv) {
  for (const std::vector<int>& stages : std::vector<std::vector<int>>{{1, 2}, {2, 1}, {2, 4}}) {
    const FullPipelines full(48, stages);
    const Result<Form> wide = rebalanced_form_in(full.spec, full.homes, full.budget);
    EXPECT_TRUE(wide.ok()) << wide.error().message;
  }
}

// A turn at any step has both ways from there, also where stages fetch layers.
TEST(Rebalance, AChangeThatTurnsHasTheWayBack) {
  for (const std::vector<int>& stages : std::vector<std::vector<int>>{{2, 1}, {3, 1}}) {
    const FullPipelines full(24, stages);
    const Form joined = joined_form(full.homes);
    const Form wide = rebalanced_form_in(full.spec, full.homes, full.budget).value();
    const Morph there = plan_regroup(full.spec, joined, wide, full.budget).value();
    const Morph back = plan_regroup(full.spec, wide, joined, full.budget).value();
    Form form = joined;
    for (std::size_t i = 0; i < there.steps.size(); ++i) {
      form = after(std::move(form), there.steps[i]);
      const auto forth = plan_regroup(full.spec, form, wide, full.budget);
      const auto turned = plan_regroup(full.spec, form, joined, full.budget);
      ASSERT_TRUE(forth.ok() && turned.ok()) << i;
      EXPECT_TRUE(std::equal(forth->steps.begin(), forth->steps.end(),
                             there.steps.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                             there.steps.end()));
      EXPECT_TRUE(std::equal(turned->steps.begin(), turned->steps.end(),
                             back.steps.end() - static_cast<std::ptrdiff_t>(i) - 1,
                             back.steps.end()));
    }
  }
}

// Homes whose KV takes all pages of their device. The first `small` of them have memory for less.
FullPipelines of_unequal_memory(int layers, int homes, int small) {
  FullPipelines full(layers, {});
  const Form most = replica_of(full.spec, 200);
  full.budget = exactly(full.spec, most);
  for (int i = 0; i < homes; ++i) {
    Form& home = full.homes.emplace_back(replica_of(full.spec, i < small ? 40 : 200));
    home.group.front().lacking_pages = full.budget.pages - form_pages(full.spec, home, kPageBytes);
  }
  return full;
}

// Returns the most KV blocks of a group on these devices.
std::int64_t most_blocks(const FullPipelines& full, const Form& wide) {
  return kv_blocks_that_fit(full.spec, wide, full.budget.pages, kPageBytes);
}

TEST(Rebalance, StagesOfUnequalMemoryHaveTheLayersThatLeaveMostKv) {
  for (const auto& [homes, small] : std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {3, 2}}) {
    SCOPED_TRACE(fmt::format("{} replicas, {} small ones", homes, small));
    FullPipelines full = of_unequal_memory(24, homes, small);
    for (const bool reversed : {false, true}) {
      if (reversed) {
        std::ranges::reverse(full.homes);
      }
      const Form joined = joined_form(full.homes);
      const Result<Form> wide = rebalanced_form_in(full.spec, full.homes, full.budget);
      ASSERT_TRUE(wide.ok()) << wide.error().message;
      expect_legal(full, joined, *wide);
      expect_legal(full, *wide, joined);
      EXPECT_EQ(layers_fetched(joined, *wide), 0);
      EXPECT_EQ(std::ssize(stages_of(*wide)), homes);
      EXPECT_GE(most_blocks(full, *wide), joined.kv.blocks);
      const std::size_t last = full.homes.size() - 1;
      EXPECT_LT(layers_of(wide->group[reversed ? last : 0]),
                layers_of(wide->group[reversed ? 0 : last]));
      // Any other division of the layers among two stages leaves less.
      for (int first = 1; homes == 2 && first < 24; ++first) {
        Form other = *wide;
        for (int layer = 0; layer < 24; ++layer) {
          other.group[layer < first ? 0 : 1].layers[static_cast<std::size_t>(layer)] =
              joined.group.front().layers.front();
          other.group[layer < first ? 1 : 0].layers[static_cast<std::size_t>(layer)] = {};
        }
        EXPECT_LE(most_blocks(full, other), most_blocks(full, *wide)) << first;
      }
    }
  }
}

// A turn at any step has both ways from there.
TEST(Rebalance, AChangeOfUnequalMemoryThatTurnsHasTheWayBack) {
  const FullPipelines full = of_unequal_memory(8, 2, 1);
  const Form joined = joined_form(full.homes);
  const Form wide = rebalanced_form_in(full.spec, full.homes, full.budget).value();
  const Morph there = plan_regroup(full.spec, joined, wide, full.budget).value();
  Form form = joined;
  for (const MorphStep& step : there.steps) {
    form = after(std::move(form), step);
    EXPECT_TRUE(plan_regroup(full.spec, form, wide, full.budget).ok());
    EXPECT_TRUE(plan_regroup(full.spec, form, joined, full.budget).ok());
  }
}

// Homes count as unequal by their devices, not by their KV alone, which may be equal by chance.
TEST(Rebalance, UnequalPipelinesWithEqualKvPlanTheirWayLikeOthers) {
  FullPipelines full(24, {1, 2});
  full.homes.back().kv.blocks = full.homes.front().kv.blocks;
  EXPECT_FALSE(of_equal_devices(full.homes));
  const Form joined = joined_form(full.homes);
  for (const Holding& holding : joined.group) {
    EXPECT_EQ(holding.home_blocks, full.homes.front().kv.blocks);
  }
  const Form wide = rebalanced_form_in(full.spec, full.homes, full.budget).value();
  expect_legal(full, joined, wide);
  expect_legal(full, wide, joined);
  FullPipelines equal = of_unequal_memory(8, 2, 0);
  EXPECT_TRUE(of_equal_devices(equal.homes));
  EXPECT_EQ(joined_form(equal.homes).group.front().home_blocks, 0);
  equal.homes.back().kv.blocks /= 2;
  EXPECT_TRUE(of_equal_devices(equal.homes));
  EXPECT_EQ(joined_form(equal.homes).group.front().home_blocks, equal.homes.front().kv.blocks);
}

// The middle third of a pipeline of three holds none of four quarters: it fetches what it lacks,
// less than a pipeline that parts first. KV stays, although it takes all pages.
TEST(Rebalance, AStageFetchesLayersThatItLacks) {
  for (const std::vector<int>& stages :
       std::vector<std::vector<int>>{{1, 3}, {3, 1}, {1, 5}, {2, 5}, {2, 6}}) {
    SCOPED_TRACE(fmt::format("{} and {} stages", stages[0], stages[1]));
    const int layers = stages[0] == 2 ? 28 : 48;
    const FullPipelines full(layers, stages);
    const Form joined = joined_form(full.homes);
    const Form wide = rebalanced_form_in(full.spec, full.homes, full.budget).value();
    EXPECT_EQ(wide.kv.blocks, full.homes[0].kv.blocks + full.homes[1].kv.blocks);
    expect_legal(full, joined, wide);
    expect_legal(full, wide, joined);
    expect_even(wide);
    const int fetched = layers_fetched(joined, wide);
    EXPECT_GT(fetched, 0);
    EXPECT_LT(fetched, layers / 6);
  }
}

// Each layer has one copy, and the first and the last one lie on devices that had the embeddings.
TEST(Rebalance, RandomPipelinesHaveOneCopyOfEachLayer) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> stages(2 + random() % 3);
    for (int& count : stages) {
      count = 1 + static_cast<int>(random() % 8);
    }
    const int devices = std::accumulate(stages.begin(), stages.end(), 0);
    const int layers = devices + static_cast<int>(random() % 60);
    SCOPED_TRACE(fmt::format("{} stages, {} layers", fmt::join(stages, " and "), layers));
    const ModelSpec spec = small_model(layers);
    const Form replica = replica_of(spec, 40);
    std::vector<Form> homes;
    for (const int count : stages) {
      homes.push_back(divided_form(replica, count, GroupBy::kLayers).value());
    }
    const Form wide = rebalanced_form(spec, homes, exactly(spec, replica)).value();
    EXPECT_EQ(wide.kv.blocks, 40 * devices);
    const std::vector<Stage> all = stages_of(wide);
    ASSERT_EQ(std::ssize(all), devices);
    expect_even(wide);
    for (const Stage& stage : all) {
      ASSERT_EQ(stage.devices.size(), 1U);
    }
    for (const Stage& end : {all.front(), all.back()}) {
      const auto device = static_cast<std::size_t>(end.devices.front());
      EXPECT_FALSE(joined_form(homes).group[device].embeddings.empty());
      EXPECT_FALSE(wide.group[device].embeddings.empty());
    }
  }
}

TEST(Rebalance, FailsIfThereAreMoreStagesThanLayers) {
  const FullPipelines full(3, {1, 3});
  const Result<Form> wide = rebalanced_form(full.spec, full.homes, full.budget);
  ASSERT_FALSE(wide.ok());
  EXPECT_EQ(wide.error().code, ErrorCode::kInvalidArgument);
}

TEST(Rebalance, ADeviceCountsTheKvOfItsOwnHome) {
  const FullPipelines full(24, {2, 1});
  const Form joined = joined_form(full.homes);
  EXPECT_EQ(joined.kv.blocks, full.homes[0].kv.blocks + full.homes[1].kv.blocks);
  for (int device = 0; device < 3; ++device) {
    const Form& home = full.homes[device / 2];
    EXPECT_EQ(kv_pages_on(full.spec, joined, device, kPageBytes),
              kv_pages_on(full.spec, home, device % 2, kPageBytes));
  }
  EXPECT_EQ(joined_form(joined, 1).group[0].home_blocks, 0);
}

TEST(KvBlocksToRegroup, ByShardsKvIsExchangedInPlace) {
  const ModelSpec spec = small_model(4);
  const Form home = replica_of(spec, 1000);
  EXPECT_EQ(kv_blocks_to_regroup(spec, home, 2, GroupBy::kShards, exactly(spec, home)).value(),
            1000);
}

TEST(KvBlocksToRegroup, FailsIfWeightsAloneLeaveNoRoom) {
  const ModelSpec spec = small_model(4);
  const Form home = replica_of(spec, 24);
  PageBudget budget = exactly(spec, replica_of(spec, 1));
  budget.pages -= 8;
  const auto blocks = kv_blocks_to_regroup(spec, home, 2, GroupBy::kLayers, budget);
  ASSERT_FALSE(blocks.ok());
  EXPECT_NE(blocks.error().message.find("however small the KV cache is"), std::string::npos)
      << blocks.error().message;
}

TEST(KvBlocksToRegroup, FailsIfTheReplicasCannotBeDivided) {
  const ModelSpec spec = small_model(1);
  const Form home = replica_of(spec, 24);
  const auto blocks = kv_blocks_to_regroup(spec, home, 2, GroupBy::kLayers, exactly(spec, home));
  ASSERT_FALSE(blocks.ok());
  EXPECT_EQ(blocks.error().message, "2 replicas cannot divide 1 layers: group fewer replicas");
}

}  // namespace
}  // namespace protean
