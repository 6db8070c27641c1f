#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace protean {

// The memory of one of several models that share devices, in bytes of each device. All but `needs`
// are multiples of the size of its pages.
struct MemoryAccount {
  std::int64_t page_bytes = 1;
  std::int64_t own = 0;    // memory that it was given when it was opened, and always gets back
  std::int64_t quota = 0;  // memory that it may use now
  std::int64_t needs = 0;  // memory for its highest precision, and for KV of its requests
  std::int64_t most = 0;   // memory that it has addresses for
};

// Returns the quotas that the models should have, of what they have and what no model has.
//  - A model that needs more than it has, and has less than its own, gets its own back: from the
//    models that have most in addition to theirs, even if they need it.
//  - A model that needs still more gets memory that others do not need, from the model that has
//    most of that. Of its own memory, a model keeps what it needs and half of the rest.
//  - What no model has goes back to models that have less than their own.
// A quota becomes smaller only for a model that needs more than it has, so equal loads move
// nothing.
std::vector<std::int64_t> share_memory(std::span<const MemoryAccount> accounts,
                                       std::int64_t unused);

}  // namespace protean
