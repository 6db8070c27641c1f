#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace protean {

// What one of several models that share devices has and needs, in bytes of each device.
struct MemoryAccount {
  std::int64_t page_bytes = 1;  // of the model's pages: its other numbers but `needs` are multiples
  std::int64_t own = 0;         // that it was given when it was opened, and always gets back
  std::int64_t quota = 0;       // that it may use now
  std::int64_t needs = 0;       // for its highest precision, and KV for the requests that it has
  std::int64_t most = 0;        // that it can use
};

// Returns the quotas that the models should have, of what they have and what no model has.
//  - A model that needs more than it has, and has less than its own, gets its own back: from the
//    models that have most in addition to theirs, whatever those need.
//  - A model that needs still more gets memory that others do not need, from the model that has
//    most of that. Of its own memory, a model keeps what it needs and half of the rest.
//  - What no model has goes back to models that have less than their own.
// A quota becomes smaller only for a model that needs more than it has, so equal loads move
// nothing.
std::vector<std::int64_t> share_memory(std::span<const MemoryAccount> accounts,
                                       std::int64_t unused);

}  // namespace protean
