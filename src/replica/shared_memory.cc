#include "replica/shared_memory.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

// The most pages that all models together may have by borrowing. Each page may need a mapping of
// its own, and the kernel allows a process some 65,530.
constexpr std::int64_t kMostPages = std::int64_t{1} << 15;

// The time after which a model that has not given up memory is asked again.
constexpr TimeNs kAskAgainNs = kNsPerS / 2;

void tell_all(const std::vector<std::pair<SharedMemory::Tell, WantQuota>>& wishes) {
  for (const auto& [tell, wish] : wishes) {
    tell(wish);
  }
}

}  // namespace

std::int64_t SharedMemory::own_bytes(const Devices& devices) {
  std::int64_t bytes = 0;
  for (const ModelMemory* const model : devices.models) {
    bytes += model->account_.own;
  }
  return bytes;
}

std::int64_t SharedMemory::most_bytes(const Devices& devices, const MemoryAccount& account) {
  const auto sharers = static_cast<std::int64_t>(devices.models.size() * devices.count);
  return std::max(account.own,
                  kMostPages / std::max<std::int64_t>(1, sharers) * account.page_bytes);
}

// A model that is not loaded neither gives nor asks. Models that have left get back what is owed to
// them, which is the system's then.
SharedMemory::Wishes SharedMemory::share(Devices& devices, TimeNs now_ns) {
  std::vector<MemoryAccount> accounts;
  std::int64_t lent = devices.owed - devices.unused;
  bool lost = devices.lost > 0;
  for (const ModelMemory* const model : devices.models) {
    MemoryAccount& account = accounts.emplace_back(model->account_);
    account.needs = model->tell_ ? account.needs : account.quota;
    account.most = std::min(account.most, most_bytes(devices, account));
    lent += account.own - account.quota;
    lost = lost || (model->failed_ && account.quota > account.own);
  }
  check(lent == devices.lost, "what models have and what none has is what is left of theirs");
  accounts.push_back({.own = devices.owed, .needs = devices.owed, .most = devices.owed});
  const std::vector<std::int64_t> wanted = share_memory(accounts, devices.unused);
  const std::int64_t returned = std::min(wanted.back(), devices.unused);
  devices.owed -= returned;
  devices.unused -= returned;
  Wishes wishes;
  for (std::size_t i = 0; i < devices.models.size(); ++i) {
    ModelMemory& model = *devices.models[i];
    MemoryAccount& account = model.account_;
    const std::int64_t page = account.page_bytes;
    const std::int64_t more = std::min(std::max<std::int64_t>(0, wanted[i] - account.quota),
                                       devices.unused / page * page);
    devices.unused -= more;
    account.quota += more;
    const std::int64_t wish = std::min(wanted[i], account.quota);
    const bool again = wish != account.quota && now_ns - model.wished_ns_ >= kAskAgainNs;
    const bool own_is_lost = lost && account.quota < account.own;
    const bool first = !model.told_ && devices.models.size() > 1;
    if (!model.tell_ || (more == 0 && wish == model.wished_ && own_is_lost == model.told_lost_ &&
                         !again && !first)) {
      continue;
    }
    model.told_ = true;
    model.told_lost_ = own_is_lost;
    model.wished_ = wish;
    model.wished_ns_ = now_ns;
    ++model.wishes_;
    wishes.emplace_back(model.tell_, WantQuota{wish / page, model.wishes_, own_is_lost});
  }
  return wishes;
}

std::int64_t SharedMemory::claimed_bytes() {
  const std::lock_guard lock(mutex_);
  std::int64_t bytes = 0;
  for (const auto& [cpus, devices] : devices_) {
    bytes += devices.unused * std::ssize(cpus);
    for (const ModelMemory* const model : devices.models) {
      const MemoryAccount& account = model->account_;
      bytes += model->loaded_
                   ? account.quota * std::ssize(cpus) - model->pages_.lacking_bytes
                   : std::min<std::int64_t>(0, account.quota - account.own) * std::ssize(cpus);
    }
  }
  return bytes;
}

ModelMemory::ModelMemory(std::shared_ptr<SharedMemory> all, std::vector<std::vector<int>> cpus,
                         const Pages& pages)
    : all_(std::move(all)),
      devices_([&]() -> SharedMemory::Devices& {
        const std::lock_guard lock(all_->mutex_);
        SharedMemory::Devices& devices = all_->devices_[cpus];
        devices.count = cpus.size();
        return devices;
      }()),
      pages_(pages) {
  const std::int64_t own = pages.own * pages.bytes;
  account_ = {.page_bytes = pages.bytes, .own = own, .quota = own, .needs = 0, .most = own};
  const std::lock_guard lock(all_->mutex_);
  all_bytes_ = SharedMemory::own_bytes(devices_) + std::max(own, pages.free_bytes);
  devices_.models.push_back(this);
}

ModelMemory::~ModelMemory() {
  leave();
}

void ModelMemory::leave() {
  SharedMemory::Wishes wishes;
  {
    const std::lock_guard lock(all_->mutex_);
    if (std::exchange(left_, true)) {
      return;
    }
    std::erase(devices_.models, this);
    // What it has borrowed is lost until it is unloaded.
    const std::int64_t others = std::max<std::int64_t>(0, account_.quota - account_.own);
    devices_.lost += others;
    devices_.owed += account_.own - account_.quota + others;
    wishes = SharedMemory::share(devices_, wished_ns_);
  }
  tell_all(wishes);
}

ModelMemory::Lease::~Lease() {
  memory_->unload();
}

void ModelMemory::Lease::lose() const {
  const std::lock_guard lock(memory_->all_->mutex_);
  memory_->loses_ = true;
}

// Memory of a model that has left may still be lent. The system does not have it, so the next model
// that is loaded begins without it, as far as it can.
std::unique_ptr<ModelMemory::Lease> ModelMemory::load(SharedMemory::Tell tell) {
  std::unique_ptr<Lease> lease;
  SharedMemory::Wishes wishes;
  {
    const std::lock_guard lock(all_->mutex_);
    const std::int64_t page = pages_.bytes;
    const std::int64_t lent =
        std::min(devices_.owed, std::max<std::int64_t>(0, account_.quota - pages_.least * page)) /
        page * page;
    devices_.owed -= lent;
    account_.quota -= lent;
    const std::int64_t all = std::max(all_bytes_, SharedMemory::own_bytes(devices_));
    const std::int64_t most = std::min(all, SharedMemory::most_bytes(devices_, account_)) / page;
    account_.most = most * page;
    account_.needs = account_.quota;
    wished_ = account_.quota;
    told_ = told_lost_ = false;
    loaded_ = true;
    tell_ = std::move(tell);
    lease.reset(new Lease(shared_from_this(), most));
    wishes = SharedMemory::share(devices_, wished_ns_);
  }
  tell_all(wishes);
  return lease;
}

void ModelMemory::fail() {
  SharedMemory::Wishes wishes;
  {
    const std::lock_guard lock(all_->mutex_);
    if (std::exchange(failed_, true)) {
      return;
    }
    tell_ = nullptr;
    wishes = SharedMemory::share(devices_, wished_ns_);
  }
  tell_all(wishes);
}

void ModelMemory::unload() {
  SharedMemory::Wishes wishes;
  {
    const std::lock_guard lock(all_->mutex_);
    tell_ = nullptr;
    loaded_ = failed_ = false;
    const std::int64_t others = std::max<std::int64_t>(0, account_.quota - account_.own);
    account_.quota -= others;
    devices_.lost -= left_ ? others : 0;
    (std::exchange(loses_, false) ? devices_.lost : devices_.unused) += others;
    wishes = SharedMemory::share(devices_, wished_ns_);
  }
  tell_all(wishes);
}

// An engine that has not come to its latest wish may still take a larger quota than it reports.
void ModelMemory::report(const MemoryUse& use, TimeNs now_ns) {
  SharedMemory::Wishes wishes;
  {
    const std::lock_guard lock(all_->mutex_);
    account_.needs = use.needs_bytes;
    if (use.wish == wishes_ && use.quota_bytes < account_.quota) {
      devices_.unused += account_.quota - use.quota_bytes;
      account_.quota = use.quota_bytes;
    }
    wishes = SharedMemory::share(devices_, now_ns);
  }
  tell_all(wishes);
}

}  // namespace protean
