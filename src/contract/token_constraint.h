#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"

namespace protean {

// Bit `id % 64` of word `id / 64` stands for token `id`.
using TokenMask = std::span<std::uint64_t>;

constexpr std::size_t token_mask_words(int vocab) {
  return (static_cast<std::size_t>(vocab) + 63) / 64;
}

// Says which tokens may follow an answer: structured output as the sampler sees it. The result
// depends only on the answer so far, and state kept between calls is a cache; so preemption, replay
// and failed steps need no care. One per request, used by one thread at a time.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Sets the bits of all tokens that may follow `answer` and clears the others. End-of-sequence
  // tokens are among them if the answer may end. At least one bit is set for any answer made of
  // allowed tokens. `mask` has token_mask_words(vocabulary of the model) words.
  virtual void allowed_after(std::span<const TokenId> answer, TokenMask mask) = 0;
};

}  // namespace protean
