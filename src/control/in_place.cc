#include "control/in_place.h"

#include <algorithm>

#include "base/units.h"

namespace protean {
namespace {

template <class... Args>
Error not_in_place(fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorCode::kUnavailable, fmt::format(format, std::forward<Args>(args)...)};
}

bool has(const std::vector<Precision>& precisions, Precision wanted) {
  return std::find(precisions.begin(), precisions.end(), wanted) != precisions.end();
}

// Fails if a component never has its precision in `wanted`.
Status check_precisions(const FormBounds& bounds, const Form& loaded, const Form& wanted) {
  for (std::size_t layer = 0; layer < wanted.layer_precision.size(); ++layer) {
    for (const Component half : kLayerHalves) {
      const Precision at = wanted.layer_precision[layer].of(half);
      const Precision start = loaded.layer_precision[layer].of(half);
      if (!has(layer_precisions({.layer_precision = {{start, start}}}, bounds.ladder), at)) {
        return not_in_place("layers that were loaded at {} cannot go to {}", to_string(start),
                            to_string(at));
      }
    }
  }
  if (!has(embeddings_precisions(loaded.embeddings, bounds.ladder), wanted.embeddings)) {
    return not_in_place("embeddings that were loaded at {} cannot go to {}",
                        to_string(loaded.embeddings), to_string(wanted.embeddings));
  }
  return {};
}

}  // namespace

Result<FormWish> wish_in_place(const FormBounds& bounds, const FormToServe& loaded,
                               const FormToServe& wanted) {
  if (wanted.form.kv.precision != loaded.form.kv.precision) {
    return not_in_place("KV goes from {} to {}", to_string(loaded.form.kv.precision),
                        to_string(wanted.form.kv.precision));
  }
  Form alike = wanted.form;
  alike.layer_precision = loaded.form.layer_precision;
  alike.embeddings = loaded.form.embeddings;
  alike.kv.blocks = loaded.form.kv.blocks;
  if (alike != loaded.form) {
    return not_in_place("devices share the model in another way");
  }
  if (Status possible = check_precisions(bounds, loaded.form, wanted.form); !possible.ok()) {
    return possible.error();
  }
  const PageBudget& budget = bounds.budget;
  const std::int64_t needed =
      std::max(form_pages(bounds.spec, wanted.form, budget.page_bytes) + budget.reserve,
               ceil_div(wanted.bytes, budget.page_bytes));
  const std::int64_t pages =
      wanted.longest < loaded.longest ? budget.pages : std::min(needed, budget.pages);
  if (kv_blocks_that_fit(bounds.spec, wanted.form, pages - budget.reserve, budget.page_bytes) < 1) {
    return not_in_place("its weights do not fit the {} that it was loaded into",
                        format_bytes(pages * budget.page_bytes));
  }
  return FormWish{.layers = wanted.form.layer_precision,
                  .embeddings = wanted.form.embeddings,
                  .rest_pages = pages};
}

bool morphs_between(const Configuration& now, const Configuration& then,
                    const std::vector<Precision>& precisions) {
  Configuration alike = then;
  alike.weights = now.weights;
  return alike == now && has(precisions, then.weights);
}

}  // namespace protean
