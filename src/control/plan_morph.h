#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "contract/morph.h"
#include "control/form_path.h"
#include "cost/memory.h"
#include "cost/pages.h"

namespace protean {

// The most swaps that are prepared concurrently: many, so that few steps of the model go by until
// all layers are lowered. Their pages come from idle KV.
inline constexpr int kSwapsAtOnce = 16;

// Returns the pages that any half of a layer takes at a precision of the ladder below its first. If
// so many are free in a form, or lent by its KV, any morph can begin.
std::int64_t reserve_pages(const ModelSpec& spec, std::span<const Precision> ladder,
                           std::int64_t page_bytes, const DeviceShare& share = {});

// Returns the pages that preparing the step takes from the free ones before its commit gives any
// back. Steps of a morph may be prepared while earlier ones are not committed if so many are free.
std::int64_t pages_to_prepare(const ModelSpec& spec, const Form& form, const MorphStep& step,
                              std::int64_t page_bytes);

// Returns the fewest KV blocks that the morph leaves on its way.
std::int64_t least_kv_blocks(const Form& from, const Morph& morph);

// Plans a morph from one form to another. Every prefix is legal, fits the budget and leaves its
// reserve free, and the pages to prepare a step are free when the steps before it are committed.
// Lowering comes first, and the KV cache grows as pages come free; then it shrinks by what the next
// raised components need. If no page is free, KV lends the first swap its pages and gets them back
// from what the swaps free. If KV has idle blocks that may be lent, faster steps come first: a
// growth leaves the pages of kSwapsAtOnce swaps free, and idle blocks lend theirs. A few large
// resizes are planned rather than one for each half. Layers are taken in the bounds' order and the
// embeddings after them, but a half that lacks pages lets smaller ones pass; raised ones in the
// reverse order of their lowering. kInvalidArgument: the forms differ in more than precisions and
// KV blocks. kExhausted: the morph does not fit; the message says by how many bytes.
Result<Morph> plan_morph(const Form& from, const Form& to, const FormBounds& bounds,
                         std::int64_t idle_blocks = 0);

// Plans the same. If only the variant of the embeddings has no room in addition to the old one, the
// morph leads to that form with the embeddings of `from` and the KV blocks that fit then.
Result<Morph> plan_with_or_without_embeddings(const Form& from, const Form& to,
                                              const FormBounds& bounds,
                                              std::int64_t idle_blocks = 0);

}  // namespace protean
