#pragma once

#include <functional>
#include <type_traits>

#include "device/cpu/low_priority.h"
#include "device/cpu/pages.h"

namespace protean {

// Returns a function that calls `await_turn` once the calling thread has worked for a few
// milliseconds of processor time since it was called last, or since the thread was started.
cpu::MayGoOn in_turns(const std::function<void()>& await_turn);

// Loads a part of a worker, and returns what `load` returns. If `await_turn` is set, other models
// compute meanwhile: `load` runs at low priority and calls its argument between pieces of about a
// millisecond. Otherwise it runs on the calling thread, and its argument is empty.
template <class Load>
auto load_in_turns(const std::function<void()>& await_turn, Load load) {
  return await_turn ? cpu::at_low_priority([&] { return load(in_turns(await_turn)); })
                    : load(cpu::MayGoOn());
}

}  // namespace protean
