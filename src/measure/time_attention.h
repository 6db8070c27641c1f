#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/result.h"
#include "device/cpu/kv_layer.h"
#include "device/cpu/team.h"

namespace protean {

struct AttentionHeads {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

// One step's attention in one layer: the last `rows` positions of each sequence look back.
struct AttentionCase {
  AttentionHeads heads;
  cpu::KvElement kv = cpu::KvElement::kBf16;
  int sequences = 1;
  int context = 0;  // tokens of each
  int rows = 1;
};

// What a kernel took, and what it cannot do without.
struct KernelTime {
  double us = 0;
  double bytes = 0;       // to be read
  double operations = 0;  // a multiply-add is two
};

using MedianOf = std::function<double(const std::function<void()>& work)>;  // seconds

// Over a paged KV in `memory`, of as many layers as it has room for, so that none is in a cache
// when its turn comes again; blocks lie in random order. kInvalidArgument: there is no room for
// two.
Result<KernelTime> time_attention(const AttentionCase& asked, cpu::Team& team,
                                  std::span<std::byte> memory, const MedianOf& median_s);

}  // namespace protean
