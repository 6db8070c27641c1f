#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "contract/step.h"
#include "device/cpu/team.h"

namespace protean {

// Draws tokens from logits. Filters apply in the order temperature, top_k, top_p, min_p; among
// equal logits the lower id comes first. A draw is a function of the row's logits, the parameters
// and the position alone: neither the batch nor the thread count can change it. Logits that are not
// a number are never drawn, unless a row has nothing else: then it is token 0. One caller at a
// time.
class Sampler {
 public:
  struct Candidate {
    float logit = 0.0F;
    TokenId id = 0;
  };

  Sampler(int vocab, int threads);

  // out[i] from row i of logits [specs.size()][vocab]. Rows are drawn in parallel.
  void sample(cpu::Team& team, std::span<const float> logits, std::span<const SampleSpec> specs,
              std::span<TokenId> out);

 private:
  int vocab_;
  std::vector<std::vector<Candidate>> room_;  // per thread, filled on first use
};

}  // namespace protean
