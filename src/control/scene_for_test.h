#pragma once

#include <vector>

#include "contract/form.h"
#include "control/form_path.h"
#include "control/plan_morph.h"
#include "control/policy_options.h"
#include "cost/memory.h"
#include "cost/pages.h"

namespace protean {

// A model whose pages are many to a half, and a device that is half layers and half KV.
inline ModelSpec spec_for_test(int layers = 16) {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.layers = layers;
  spec.hidden = 768;
  spec.ffn = 2048;
  spec.vocab = 16000;
  spec.attention = {.heads = 12, .kv_heads = 4, .head_dim = 64};
  return spec;
}

inline FormBounds bounds_for_test(int layers = 16, double kv_share = 0.5) {
  FormBounds bounds;
  bounds.spec = spec_for_test(layers);
  bounds.ladder = {Precision::kBf16, Precision::kW8, Precision::kW4};
  bounds.full = single_device_form(bounds.spec, Precision::kBf16, DeviceId{0},
                                   {.block_tokens = 16, .blocks = 1});
  PageBudget& budget = bounds.budget;
  // Small enough that the KV array of each layer fills many, and every lowered layer adds blocks.
  budget.page_bytes = page_bytes_for(bounds.spec) / 8;
  budget.reserve = reserve_pages(bounds.spec, bounds.ladder, budget.page_bytes);
  const std::int64_t embeddings = component_pages(bounds.spec, Component::kEmbeddings,
                                                  bounds.full.embeddings, budget.page_bytes);
  const auto layers_pages =
      static_cast<double>(weight_pages(bounds.spec, bounds.full, budget.page_bytes) - embeddings);
  budget.pages =
      budget.reserve + embeddings + static_cast<std::int64_t>(layers_pages / (1 - kv_share));
  bounds.full = form_path(bounds).front();
  return bounds;
}

// The path of bounds whose ladder ends at `lowest`.
inline std::vector<Form> path_to(FormBounds bounds, Precision lowest) {
  std::erase_if(bounds.ladder,
                [&](Precision precision) { return weight_bits(precision) < weight_bits(lowest); });
  return form_path(bounds);
}

}  // namespace protean
