#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/known_models.h"

namespace protean {

// A tensor of a layer's FFN in pages (AMOEBA section 3.2, table 2), at bf16. A number that is not
// whole means that a device's share does not end on a page.
struct FfnTensor {
  std::string name;
  double pages = 0;  // pages of the whole tensor

  double pages_at(int degree) const { return pages / degree; }
  // The share of the tensor that padding adds if each of `degree` shares begins on a page.
  double padding_at(int degree) const;
};

// Returns the tensors of one layer: all experts of a layer as one tensor, with gate and up in one;
// gate, up and down of a dense layer.
std::vector<FfnTensor> ffn_tensors(const KnownModel& model, std::int64_t page_bytes);

}  // namespace protean
