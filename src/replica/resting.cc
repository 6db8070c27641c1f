#include "replica/resting.h"

#include <algorithm>

#include "base/check.h"
#include "cost/step_time.h"

namespace protean {

ReplicaOptions resting_in(ReplicaOptions options, const FormWish& rest) {
  check(options.morph.has_value(), "a form that rests is one that may change");
  MorphConfig& morph = *options.morph;
  Sizing& sizing = options.sizing;
  FormBounds& bounds = morph.bounds;
  morph.opened = sizing.form;
  options.most_pages = std::max(options.most_pages, sizing.budget.pages);
  if (options.memory == nullptr) {  // what a model lends stays its own
    sizing.budget.pages = rest.rest_pages.value_or(sizing.budget.pages);
    bounds.budget.pages = sizing.budget.pages;
  }
  Form& form = sizing.form;
  form.layer_precision = rest.layers;
  form.embeddings = rest.embeddings.value_or(form.embeddings);
  form.kv.blocks = std::min(kv_blocks_that_fit(bounds, form), sizing.largest_kv_blocks);
  sizing.step_precision = step_precision(bounds.spec, form);
  bounds.full = morph.start = form;
  return options;
}

}  // namespace protean
