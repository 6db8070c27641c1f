#include "cost/pages.h"

#include <gtest/gtest.h>

#include "base/units.h"
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

TEST(Pages, OfTheEmbeddingsAreOnEveryDevice) {
  const ModelSpec spec = spec_of(256, 704);
  const std::int64_t page_bytes = page_bytes_for(spec);
  const std::int64_t embeddings =
      component_pages(spec, Component::kEmbeddings, Precision::kBf16, page_bytes);
  EXPECT_EQ(component_pages(spec, Component::kEmbeddings, Precision::kBf16, page_bytes, 4),
            embeddings);
  Form form = single_device_form(spec, Precision::kBf16, DeviceId{0}, {.blocks = 10});
  form.largest_tp_degree = 4;
  const std::int64_t whole = weight_pages(spec, form, page_bytes);
  form.tp_degree = 4;
  EXPECT_EQ(weight_pages(spec, form, page_bytes) - embeddings, (whole - embeddings) / 4);
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
