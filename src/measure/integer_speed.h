#pragma once

#include <array>
#include <functional>

#include "contract/precision.h"

namespace protean {

// Returns the seconds that a prompt's product takes with weights at a precision.
using ProductTime = std::function<double(Precision)>;

// Returns the faster of w8 and `eight_bits`, w8 with integer activations, then the faster of w4 and
// w4a8. Integer activations lose more quality, so they have to be faster by a fifth.
std::array<Precision, 2> faster_precisions(Precision eight_bits, const ProductTime& product_s);

// Returns the pair of precisions that is fastest on this machine. With vectors, integers always
// are. With AMX, the first call measures it for some milliseconds.
std::array<Precision, 2> fastest_precisions();

}  // namespace protean
