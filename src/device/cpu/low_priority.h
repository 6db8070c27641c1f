#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

namespace protean::cpu {

// Runs `work` on a thread of its own with a low scheduling priority, and waits for it. Rethrows an
// exception of `work`. On a CPU that both want, a thread of normal priority then gets nine tenths
// of the time. The thread has the caller's CPUs and NUMA nodes. If none can be started, the
// caller's does the work. `work` must start no threads: they would inherit the priority, and
// raising it again needs a privilege.
void run_at_low_priority(const std::function<void()>& work);

// The same, and returns what `work` returns.
template <class Work>
auto at_low_priority(Work work) {
  std::optional<std::invoke_result_t<Work>> result;
  run_at_low_priority([&] { result.emplace(work()); });
  return *std::move(result);
}

}  // namespace protean::cpu
