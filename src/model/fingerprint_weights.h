#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "device/cpu/team.h"
#include "model/checkpoint.h"
#include "model/weights.h"

namespace protean {

// Returns the model with its first `layers` hidden layers only: the sizes of a fingerprint (iServe
// section 5.1).
ModelSpec with_layers(ModelSpec spec, int layers);

// Fills the memory of a whole component like load_component(), but packs only the first panel of
// each matrix and repeats it with the threads of `team`. The memory has the size, the layout and
// the kind of values of the real component, and takes the time of a copy to fill. Kernels take as
// long on it, and compute nothing of use. `spec` may have fewer layers and a smaller vocabulary
// than the checkpoint's.
Status load_repeated(const Checkpoint& checkpoint, const ModelSpec& spec,
                     const ComponentVariant& which, cpu::Team& team, std::byte* memory);

// Copies packed weights and computes their checksum, as reading a variant from the page cache does.
// `to` has at least the size of `from`.
void copy_checked(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace protean
