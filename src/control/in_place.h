#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "contract/configuration.h"
#include "contract/form.h"
#include "contract/morph.h"
#include "control/form_path.h"
#include "cost/pages.h"

namespace protean {

// A form, the tokens of the longest request that a model in it promises to hold, and the bytes of
// pages that a device has for it: 0, or more than the form itself takes.
struct FormToServe {
  Form form;
  std::int64_t longest = 0;
  std::int64_t bytes = 0;
};

// Returns the wish with which an engine takes the precisions and the KV size of `wanted` by a
// morph, in its own memory and without a second copy of the model. Fails with the reason if it
// cannot: the model is divided otherwise or stores KV otherwise, or its weights cannot rise above
// the precision that they were `loaded` at. `bounds` are those of the engine as it was loaded. It
// takes as many pages as `wanted` needs, at most those that it was loaded with, and all of these if
// `wanted` promises less than was promised before.
Result<FormWish> wish_in_place(const FormBounds& bounds, const FormToServe& loaded,
                               const FormToServe& wanted);

// Returns true if an engine that may have layers at these precisions goes from one configuration to
// another by a morph.
bool morphs_between(const Configuration& now, const Configuration& then,
                    const std::vector<Precision>& precisions);

}  // namespace protean
