#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "contract/morph.h"
#include "contract/precision.h"
#include "model/variant_store.h"
#include "worker/device_worker.h"

namespace protean {

// The variants that a policy may have layers swapped to.
struct VariantsOfPolicy {
  std::shared_ptr<VariantStore> variants;
  std::vector<SwapTarget> order;  // first lowered first
  std::vector<Precision> ladder;
};

// Plans to pack the variants that the cache lacks, and returns the work. Those that layers are
// lowered to first come first. If there is nothing to pack, the work reads these ahead, so that the
// first swaps find them in the page cache. Calls `told` now, and on the working thread after each
// variant. If less than twice the memory is free that a variant takes, packing ends, and if less
// than twice what is to be read, nothing is read ahead. Swaps then pack or read what they need.
BackgroundTask prepare_variants(VariantsOfPolicy wanted, std::function<void(Packing)> told);

}  // namespace protean
