#include "cost/stage_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "cost/pages.h"

namespace protean {
namespace {

constexpr std::int64_t kPageBytes = 4096;

ModelSpec small_spec(int layers) {
  ModelSpec spec;
  spec.layers = layers;
  spec.hidden = 128;
  spec.ffn = 256;
  spec.vocab = 512;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 32};
  return spec;
}

// Returns all ways to divide layers among stages.
std::vector<std::vector<int>> all_divisions(int layers, int stages) {
  if (stages == 1) {
    return {{layers}};
  }
  std::vector<std::vector<int>> all;
  for (int first = 1; first <= layers - stages + 1; ++first) {
    for (std::vector<int>& rest : all_divisions(layers - first, stages - 1)) {
      rest.insert(rest.begin(), first);
      all.push_back(std::move(rest));
    }
  }
  return all;
}

struct StageScene {
  ModelSpec spec;
  Form form;
  int tensor = 1;
  StageRoom room;

  // Returns the KV blocks of a division, counted on the devices of its form; 0 if weights or a
  // block do not fit.
  std::int64_t blocks_of(const std::vector<int>& stage_layers) const {
    std::vector<DeviceId> devices;
    for (int device = 0; device < tensor * static_cast<int>(stage_layers.size()); ++device) {
      devices.push_back(DeviceId{device});
    }
    Form divided = divide(form, {tensor, stage_layers}, devices);
    const auto fits = [&](std::int64_t blocks) {
      divided.kv.blocks = blocks;
      for (std::size_t device = 0; device < devices.size(); ++device) {
        if (pages_on(spec, divided, static_cast<int>(device), kPageBytes) >
            room.pages[device / static_cast<std::size_t>(tensor)]) {
          return false;
        }
      }
      return true;
    };
    std::int64_t blocks = 0;
    for (std::int64_t beyond = room.most_blocks + 1; blocks + 1 < beyond;) {
      const std::int64_t middle = (blocks + beyond) / 2;
      (fits(middle) ? blocks : beyond) = middle;
    }
    return blocks;
  }
};

StageScene random_scene(std::mt19937& random) {
  const auto below = [&](int end) {
    return static_cast<int>(random() % static_cast<unsigned>(end));
  };
  StageScene scene{
      .spec = small_spec(3 + below(5)), .form = {}, .tensor = 1 + below(2), .room = {}};
  scene.form = single_device_form(scene.spec, Precision::kBf16, DeviceId{0}, {.block_tokens = 16});
  scene.form.shards = 2;
  for (LayerPrecision& layer : scene.form.layer_precision) {
    layer.mlp = below(3) == 0 ? Precision::kW4 : layer.mlp;
  }
  scene.room = {.page_bytes = kPageBytes, .pages = {}, .most_blocks = 1 + below(300)};
  for (int stage = 2 + below(2); stage > 0; --stage) {
    scene.room.pages.push_back(40 + below(600));
  }
  return scene;
}

// The chosen division has as many blocks as the best of all, and the fewest layers in its largest
// stage of those that have.
TEST(StageLayers, HaveTheMostBlocksOfAllDivisions) {
  std::mt19937 random(5);
  int impossible = 0;
  int even = 0;
  int uneven = 0;
  for (int round = 0; round < 60; ++round) {
    const StageScene scene = random_scene(random);
    const auto stages = static_cast<int>(scene.room.pages.size());
    const std::vector<int> chosen =
        stage_layers_for(scene.spec, scene.form, scene.tensor, scene.room);
    std::int64_t most = 0;
    int fewest = scene.spec.layers;
    for (const std::vector<int>& division : all_divisions(scene.spec.layers, stages)) {
      const std::int64_t blocks = scene.blocks_of(division);
      const int largest = *std::max_element(division.begin(), division.end());
      fewest = blocks > most ? largest : blocks == most ? std::min(fewest, largest) : fewest;
      most = std::max(most, blocks);
    }
    ASSERT_EQ(chosen.empty(), most == 0) << "round " << round;
    if (chosen.empty()) {
      ++impossible;
      continue;
    }
    ASSERT_EQ(scene.blocks_of(chosen), most) << "round " << round;
    ASSERT_EQ(*std::max_element(chosen.begin(), chosen.end()), fewest) << "round " << round;
    const std::vector<int> alike = even_division(scene.spec.layers, 1, stages).stage_layers;
    ASSERT_EQ(chosen == alike, scene.blocks_of(alike) == most) << "round " << round;
    ++(chosen == alike ? even : uneven);
  }
  EXPECT_GT(impossible, 0);
  EXPECT_GT(even, 0);
  EXPECT_GT(uneven, 0);
}

TEST(StageLayers, FollowMemory) {
  const ModelSpec spec = small_spec(8);
  Form form = single_device_form(spec, Precision::kBf16, DeviceId{0}, {.block_tokens = 16});
  StageRoom room{.page_bytes = kPageBytes, .pages = {6000, 2000}, .most_blocks = 1'000'000};
  EXPECT_EQ(stage_layers_for(spec, form, 1, room), (std::vector<int>{6, 2}));
  room.pages = {2000, 6000};
  EXPECT_EQ(stage_layers_for(spec, form, 1, room), (std::vector<int>{2, 6}));
  room.most_blocks = 1;
  EXPECT_EQ(stage_layers_for(spec, form, 1, room), (std::vector<int>{4, 4}))
      << "memory is no reason for uneven stages where it suffices";
  room.pages = {1, 6000};
  EXPECT_TRUE(stage_layers_for(spec, form, 1, room).empty());
}

}  // namespace
}  // namespace protean
