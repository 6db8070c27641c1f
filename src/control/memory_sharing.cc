#include "control/memory_sharing.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/units.h"

namespace protean {
namespace {

// Computes the quotas step by step.
class Sharing {
 public:
  Sharing(std::span<const MemoryAccount> accounts, std::int64_t unused)
      : accounts_(accounts), unused_(unused) {
    for (const MemoryAccount& account : accounts) {
      quotas_.push_back(account.quota);
    }
  }

  // Raises a model's quota to `wanted`, or as far as there is unused memory.
  void raise(std::size_t model, std::int64_t wanted) {
    const std::int64_t page = accounts_[model].page_bytes;
    const std::int64_t given = std::min(missing(model, wanted), unused_ / page * page);
    quotas_[model] += given;
    unused_ -= given;
  }

  // Takes as much from other models as `model` lacks, with what is unused, to have `wanted`. Each
  // keeps what `kept` returns for its account.
  template <class Kept>
  void take_for(std::size_t model, std::int64_t wanted, const Kept& kept) {
    const auto spare = [&](std::size_t giver) {
      const std::int64_t page = accounts_[giver].page_bytes;
      const std::int64_t bytes = std::max<std::int64_t>(0, quotas_[giver] - kept(accounts_[giver]));
      return giver == model ? 0 : bytes / page * page;
    };
    while (unused_ < missing(model, wanted)) {
      std::size_t giver = 0;
      for (std::size_t other = 1; other < quotas_.size(); ++other) {
        giver = spare(other) > spare(giver) ? other : giver;
      }
      const std::int64_t lacking = missing(model, wanted) - unused_;
      const std::int64_t given =
          std::min(spare(giver), round_up(lacking, accounts_[giver].page_bytes));
      if (given == 0) {
        return;
      }
      quotas_[giver] -= given;
      unused_ += given;
    }
  }

  std::int64_t missing(std::size_t model, std::int64_t wanted) const {
    return round_up(std::max<std::int64_t>(0, wanted - quotas_[model]),
                    accounts_[model].page_bytes);
  }
  std::vector<std::int64_t> quotas() && { return std::move(quotas_); }

 private:
  const std::span<const MemoryAccount> accounts_;
  std::int64_t unused_;
  std::vector<std::int64_t> quotas_;
};

}  // namespace

std::vector<std::int64_t> share_memory(std::span<const MemoryAccount> accounts,
                                       std::int64_t unused) {
  Sharing sharing(accounts, unused);
  const auto own = [](const MemoryAccount& account) { return account.own; };
  for (std::size_t i = 0; i < accounts.size(); ++i) {
    const std::int64_t wanted = std::min(accounts[i].needs, accounts[i].own);
    sharing.take_for(i, wanted, own);
    sharing.raise(i, wanted);
  }
  const auto needed = [](const MemoryAccount& account) {
    const std::int64_t rest = std::max<std::int64_t>(0, account.own - account.needs);
    return account.needs + ceil_div<std::int64_t>(rest, 2);
  };
  const auto lacks = [&](std::size_t i) {
    return sharing.missing(i, std::min(accounts[i].needs, accounts[i].most));
  };
  std::vector<std::size_t> order(accounts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lacks(a) > lacks(b); });
  for (const std::size_t i : order) {
    const std::int64_t wanted = std::min(accounts[i].needs, accounts[i].most);
    sharing.take_for(i, wanted, needed);
    sharing.raise(i, wanted);
  }
  for (std::size_t i = 0; i < accounts.size(); ++i) {
    sharing.raise(i, accounts[i].own);
  }
  return std::move(sharing).quotas();
}

}  // namespace protean
