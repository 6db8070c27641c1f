#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "contract/morph.h"
#include "cost/pages.h"

namespace protean {

// The forms that a policy may choose from.
struct FormBounds {
  ModelSpec spec;
  PageBudget budget;
  Form full;  // the form of quiet times; no half is above the first of the ladder
  std::vector<SwapTarget> order;  // first lowered first; empty: layers front to back
  std::vector<Precision> ladder;  // allowed precisions, full precision first, then fewer bits
  QualityFloor floor;
  std::int64_t most_kv_blocks = 0;  // 0: as many as fit
  bool embeddings_stay = false;     // at the precision of `full`, as in MorphServe
};

Status validate(const FormBounds& bounds);

// Returns true if the form is not below the quality floor.
bool above_floor(const FormBounds& bounds, const Form& form);

// Returns true if a half at `now` is lowered by going to this rung of the ladder: to fewer bits, or
// from the same weights to activations of fewer.
bool is_below(Precision rung, Precision now);

// Returns the order of the bounds, or the one that an empty order stands for.
std::vector<SwapTarget> order_of(const FormBounds& bounds);

// Returns how many KV blocks fit in addition to a form's weights and the reserve; 0 if none do.
std::int64_t kv_blocks_that_fit(const FormBounds& bounds, const Form& form);

// Returns the form with as many KV blocks as fit in addition to its weights and the reserve.
Form with_fitting_kv(const FormBounds& bounds, Form form);

// Returns the forms that a policy goes through, from the one of quiet times: every layer in order
// one precision lower, and with the last ones the embeddings, then every layer in order the next,
// as far as the floor allows. So the gentlest precision is used up first. Halves that began lower
// wait until the others have come down to them. Each form has as many KV blocks as fit, and none
// has fewer than the one before it.
std::vector<Form> form_path(const FormBounds& bounds);

// Returns forms that are not on the path of the bounds and may be better than one that is:
//  - Only the embeddings are lowered, if KV of the form of quiet times has room for their variant.
//  - The first half of the targets in order is two rungs below the other half. The variants are
//    smaller than those of all targets one rung down, so they are read sooner.
// Each has as many KV blocks as fit, but no more than the last form of the path.
std::vector<Form> forms_off_path(const FormBounds& bounds, const std::vector<Form>& path);

}  // namespace protean
