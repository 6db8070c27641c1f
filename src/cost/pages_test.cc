#include "cost/pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/units.h"
#include "cost/kv_blocks_for_test.h"
#include "cost/memory.h"

namespace protean {
namespace {

ModelSpec spec_of(int hidden, int ffn) {
  ModelSpec spec;
  spec.layers = 16;
  spec.hidden = hidden;
  spec.ffn = ffn;
  spec.vocab = 4096;
  spec.attention = {.heads = hidden / 32, .kv_heads = hidden / 64, .head_dim = 32};
  return spec;
}

TEST(Pages, AreAtMost32768InAProcess) {
  const ModelSpec large = spec_of(2048, 8192);
  EXPECT_EQ(page_bytes_for(large, 1, 64 * kGiB), 2 * kMiB);
  EXPECT_EQ(page_bytes_for(large, 1, 64 * kGiB + 1), 4 * kMiB);
  EXPECT_EQ(page_bytes_for(spec_of(32, 64), 1, kGiB), 32 * kKiB);
  // 64 GiB on 8 devices, of which every page is a mapping of its own.
  EXPECT_LT(64 * kGiB / page_bytes_for(large, 8, 64 * kGiB), 65530);
}

TEST(Pages, AreOf2MiBUnlessAModelIsSmall) {
  EXPECT_EQ(page_bytes_for(spec_of(2048, 8192)), 2 * kMiB);
  EXPECT_EQ(page_bytes_for(spec_of(32, 64)), 4 * kKiB);
  for (const int hidden : {128, 256, 512, 1024}) {
    const ModelSpec spec = spec_of(hidden, 3 * hidden);
    const std::int64_t page_bytes = page_bytes_for(spec);
    EXPECT_EQ(page_bytes & (page_bytes - 1), 0);
    const Form form = single_device_form(spec, Precision::kBf16, DeviceId{0}, {.blocks = 10});
    const std::int64_t exact = weight_bytes(spec, form);
    EXPECT_LT(weight_pages(spec, form, page_bytes) * page_bytes, exact * 9 / 8) << hidden;
  }
}

TEST(Pages, OfAFormAreThoseOfItsComponentsAndItsKv) {
  const ModelSpec spec = spec_of(256, 704);
  const std::int64_t page_bytes = page_bytes_for(spec);
  Form form = single_device_form(spec, Precision::kBf16, DeviceId{0}, {.blocks = 10});
  const std::int64_t before = form_pages(spec, form, page_bytes);
  EXPECT_EQ(before, weight_pages(spec, form, page_bytes) + kv_pages(spec, form.kv, page_bytes));
  form.layer_precision[3].mlp = Precision::kW4;
  EXPECT_EQ(before - form_pages(spec, form, page_bytes),
            component_pages(spec, Component::kMlp, Precision::kBf16, page_bytes) -
                component_pages(spec, Component::kMlp, Precision::kW4, page_bytes));
  const std::int64_t with_embeddings = weight_pages(spec, form, page_bytes);
  form.embeddings = Precision::kW8;
  EXPECT_EQ(with_embeddings - weight_pages(spec, form, page_bytes),
            component_pages(spec, Component::kEmbeddings, Precision::kBf16, page_bytes) -
                component_pages(spec, Component::kEmbeddings, Precision::kW8, page_bytes));
}

const std::vector<DeviceId> kFour = {{0}, {1}, {2}, {3}};

Form divided(const ModelSpec& spec, int shards, const Division& division, std::int64_t blocks) {
  Form form = single_device_form(spec, Precision::kBf16, DeviceId{0}, {.blocks = blocks});
  form.shards = shards;
  return divide(form, division,
                std::span(kFour).first(static_cast<std::size_t>(division.devices())));
}

// Every shard and every layer's KV array lies on pages of its own, so division changes no sum but
// for the embeddings, which the first and the last stage hold.
TEST(Pages, OfAGroupAddUpToThoseOfOneDevice) {
  const ModelSpec spec = spec_of(256, 704);
  const std::int64_t page_bytes = page_bytes_for(spec, 4);
  const std::int64_t embeddings =
      component_pages(spec, Component::kEmbeddings, Precision::kBf16, page_bytes, 4);
  const auto sum_on = [&](const Form& form) {
    std::int64_t sum = 0;
    std::int64_t most = 0;
    for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
      const std::int64_t pages = weight_pages_on(spec, form, device, page_bytes);
      sum += pages;
      most = std::max(most, pages);
    }
    EXPECT_EQ(weight_pages(spec, form, page_bytes), most);
    return sum;
  };
  const std::int64_t whole = sum_on(divided(spec, 4, {1, {16}}, 10));
  EXPECT_EQ(sum_on(divided(spec, 4, {4, {16}}, 10)), whole);
  EXPECT_EQ(sum_on(divided(spec, 4, {1, {10, 6}}, 10)), whole + embeddings);
  EXPECT_EQ(sum_on(divided(spec, 4, {2, {9, 7}}, 10)), whole + embeddings);
}

// Devices that keep attention weights have those that one device has, and KV of their own shards.
TEST(Pages, OfAGroupThatKeepsAttentionWeights) {
  const ModelSpec spec = spec_of(256, 704);
  const std::int64_t page_bytes = page_bytes_for(spec, 4);
  const Form whole = divided(spec, 4, {1, {16}}, 100);
  const Form divides = divided(spec, 4, {4, {16}}, 100);
  Form keeps = divides;
  keeps.attention_kept = 4;
  const std::int64_t attention =
      16 * component_pages(spec, Component::kAttention, Precision::kBf16, page_bytes, 4);
  const std::int64_t weights = weight_pages(spec, divides, page_bytes);
  EXPECT_EQ(weight_pages(spec, keeps, page_bytes), weights + attention / 4 * 3);
  EXPECT_LT(weight_pages(spec, keeps, page_bytes), weight_pages(spec, whole, page_bytes));
  EXPECT_EQ(kv_pages_on(spec, keeps, 1, page_bytes), kv_pages_on(spec, divides, 1, page_bytes));
  EXPECT_EQ(pages_by_device(spec, keeps, page_bytes)[1].layers[5].first, attention / 16);
  const std::int64_t pages = weight_pages(spec, whole, page_bytes);
  EXPECT_EQ(kv_blocks_that_fit(spec, keeps, pages, page_bytes),
            kv_blocks_that_fit(spec, divides, pages - attention / 4 * 3, page_bytes));
}

TEST(Pages, ThatADeviceLacksAreNotThereForKv) {
  const ModelSpec spec = spec_of(256, 704);
  const std::int64_t page_bytes = page_bytes_for(spec);
  Form form = divided(spec, 1, {1, {12, 4}}, 10);
  const std::int64_t pages = form_pages(spec, form, page_bytes) + 240;
  const std::int64_t blocks = kv_blocks_that_fit(spec, form, pages, page_bytes);
  const std::int64_t second = pages_on(spec, form, 1, page_bytes);
  form.group[1].lacking_pages = pages - second;
  EXPECT_EQ(pages_on(spec, form, 1, page_bytes), pages);
  EXPECT_EQ(form_pages(spec, form, page_bytes), pages);
  EXPECT_LT(kv_blocks_that_fit(spec, form, pages, page_bytes), blocks);
  EXPECT_GE(kv_blocks_that_fit(spec, form, pages, page_bytes), 10);
  EXPECT_EQ(pages_by_device(spec, form, page_bytes)[1].kv, kv_pages_on(spec, form, 1, page_bytes));
}

TEST(Pages, AreKnownForEachDeviceLayerByLayer) {
  const ModelSpec spec = spec_of(256, 704);
  const std::int64_t page_bytes = page_bytes_for(spec, 4);
  for (const Division& division : {Division{1, {16}}, Division{4, {16}}, Division{2, {9, 7}}}) {
    const Form form = divided(spec, 4, division, 10);
    const std::vector<DevicePages> devices = pages_by_device(spec, form, page_bytes);
    ASSERT_EQ(devices.size(), form.group.size());
    for (std::size_t device = 0; device < devices.size(); ++device) {
      std::int64_t sum = devices[device].embeddings + devices[device].kv;
      ASSERT_EQ(devices[device].layers.size(), 16U);
      for (std::size_t layer = 0; layer < 16; ++layer) {
        const auto& [attention, mlp] = devices[device].layers[layer];
        EXPECT_EQ(attention == 0, form.group[device].layers[layer].attention.empty());
        sum += attention + mlp;
      }
      EXPECT_EQ(sum, pages_on(spec, form, static_cast<int>(device), page_bytes));
      EXPECT_EQ(devices[device].device, form.group[device].device);
    }
  }
}

TEST(Pages, HoldOnEveryDeviceAsManyBlocksAsTheyAreSaidTo) {
  const ModelSpec spec = spec_of(256, 704);
  const std::int64_t page_bytes = page_bytes_for(spec, 4);
  for (const Division& division : {Division{1, {16}}, Division{2, {16}}, Division{4, {16}},
                                   Division{1, {11, 5}}, Division{2, {9, 7}}}) {
    Form form = divided(spec, 4, division, 1);
    const std::int64_t weights = weight_pages(spec, form, page_bytes);
    for (const std::int64_t more : {16, 17, 100, 1001}) {
      form.kv.blocks = kv_blocks_that_fit(spec, form, weights + more, page_bytes);
      EXPECT_LE(form_pages(spec, form, page_bytes), weights + more);
      ++form.kv.blocks;
      EXPECT_GT(form_pages(spec, form, page_bytes), weights + more);
    }
    EXPECT_EQ(kv_blocks_that_fit(spec, form, weights - 1, page_bytes), 0);
  }
  Form mixed = divided(spec, 4, {2, {16}}, 1);
  mixed.group[0].layers[3].attention = {0, 1};
  mixed.group.push_back(mixed.group[0]);
  mixed.group.back().device = DeviceId{2};
  mixed.group.back().layers[3].attention = {1, 1};
  const std::int64_t pages = weight_pages(spec, mixed, page_bytes) + 50;
  mixed.kv.blocks = kv_blocks_that_fit(spec, mixed, pages, page_bytes);
  EXPECT_LE(form_pages(spec, mixed, page_bytes), pages);
  ++mixed.kv.blocks;
  EXPECT_GT(form_pages(spec, mixed, page_bytes), pages);
}

TEST(Pages, HoldAsManyBlocksAsTheyAreSaidTo) {
  const ModelSpec spec = spec_of(256, 704);
  const std::int64_t page_bytes = page_bytes_for(spec);
  KvForm kv;
  for (std::int64_t pages = 1; pages < 200; ++pages) {
    kv.blocks = kv_blocks_in(spec, kv, pages, page_bytes);
    EXPECT_LE(kv_pages(spec, kv, page_bytes), pages);
    ++kv.blocks;
    EXPECT_GT(kv_pages(spec, kv, page_bytes), pages);
  }
}

}  // namespace
}  // namespace protean
