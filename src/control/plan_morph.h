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

// Swaps that are prepared beside one step, at most.
inline constexpr int kSwapsAtOnce = 16;

// What a lowering is to bring first. Each swap waits for a step to give back the pages of those
// before it, so where steps are to get faster, growth leaves the pages of kSwapsAtOnce swaps, and
// blocks of KV that nobody needs until then lend theirs.
struct MorphAim {
  bool faster_steps = false;
  std::int64_t idle_blocks = 0;
  bool lends_to_embeddings = false;  // blocks that are wanted, until the embeddings are swapped
};

// Pages that have to stay free so that any half of a layer can be filled at a precision of the
// ladder below its first while the old one still serves: what PageBudget::reserve should be.
std::int64_t reserve_pages(const ModelSpec& spec, std::span<const Precision> ladder,
                           std::int64_t page_bytes, const DeviceShare& share = {});

// Pages that preparing the step takes from the free ones before its commit gives any back. Steps of
// a plan may be prepared while earlier ones are not committed yet if there are so many.
std::int64_t pages_to_prepare(const ModelSpec& spec, const Form& form, const MorphStep& step,
                              std::int64_t page_bytes);

// Steps from one form to another, of which every prefix is legal, fits the budget and leaves its
// reserve free, with the pages to prepare each step free when those before it are committed.
// Lowering comes first and the KV cache grows as its pages come free, having lent some where the
// aim says so; then it shrinks by what the next raised parts need. A few large resizes rather than
// one for each half. Layers are taken in the bounds' order, the embeddings behind them, and raised
// ones in its reverse. kInvalidArgument: the forms differ in more than precisions and KV blocks.
// kExhausted: does not fit; says by how many bytes.
Result<Morph> plan_morph(const Form& from, const Form& to, const FormBounds& bounds,
                         const MorphAim& aim = {});

// The same, but where only the variant of the embeddings has no room beside the old one, to that
// form with the embeddings and the room that there are.
Result<Morph> plan_with_or_without_embeddings(const Form& from, const Form& to,
                                              const FormBounds& bounds, const MorphAim& aim);

}  // namespace protean
