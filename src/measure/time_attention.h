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

// The attention of one step in one layer, for the last `rows` positions of each sequence.
struct AttentionCase {
  AttentionHeads heads;
  cpu::KvElement kv = cpu::KvElement::kBf16;
  int sequences = 1;
  int context = 0;  // tokens of each
  int rows = 1;
};

// The time of a kernel, and the least that it must read and compute.
struct KernelTime {
  double us = 0;
  double bytes = 0;       // bytes that attention reads
  double operations = 0;  // a multiply-add is two
};

using MedianOf = std::function<double(const std::function<void()>& work)>;  // seconds

// Times attention over a paged KV cache in `memory`, with blocks in random order. It has as many
// layers as fit, so that none is in a cache when it is read again. Fails with kInvalidArgument if
// fewer than two fit.
Result<KernelTime> time_attention(const AttentionCase& asked, cpu::Team& team,
                                  std::span<std::byte> memory, const MedianOf& median_s);

}  // namespace protean
