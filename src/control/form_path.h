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

// How far quality may go, whatever the load.
struct QualityFloor {
  double least_mean_bits = 0;    // of the weights of all layers; embeddings have 8 at least
  int most_lowered_layers = -1;  // with a half below full precision; -1: all
};

// "6bits", "6.5bits", "8layers", "none".
Result<QualityFloor> parse_quality_floor(std::string_view text);
std::string to_string(const QualityFloor& floor);

// What forms a policy may choose from.
struct FormBounds {
  ModelSpec spec;
  PageBudget budget;
  Form full;                      // of quiet times, no half above the first of the ladder
  std::vector<SwapTarget> order;  // first lowered first; empty: layers front to back
  std::vector<Precision> ladder;  // allowed precisions, full precision first, then fewer bits
  QualityFloor floor;
  std::int64_t most_kv_blocks = 0;  // 0: as many as fit
  bool embeddings_stay = false;     // at what `full` has, as in MorphServe
};

Status validate(const FormBounds& bounds);

// Whether a half at `now` is lowered by going to this rung of the ladder: to fewer bits, or from
// the same weights to activations of fewer.
bool is_below(Precision rung, Precision now);

// That of the bounds, or the one that an empty one stands for.
std::vector<SwapTarget> order_of(const FormBounds& bounds);

// As many KV blocks as fit beside a form's weights and the reserve; 0 where none do.
std::int64_t kv_blocks_beside(const FormBounds& bounds, const Form& form);

// The forms a policy goes through, from the one of quiet times: every layer in order one precision
// lower and with the last ones the embeddings, then every layer in order the next, as far as the
// floor allows, not below `lowest` and this share of the layers there. So the gentlest precision is
// used up first. Halves that began lower wait until the others have come down to them. Each has as
// many KV blocks as fit beside its weights and the reserve; from each to the next the cache need
// not shrink.
std::vector<Form> form_path(const FormBounds& bounds, Precision lowest, double lowest_share = 1);

}  // namespace protean
