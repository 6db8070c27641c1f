#include "device/cpu/lost_memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <vector>

#include "base/check.h"

namespace protean::cpu {
namespace {

constexpr std::size_t kMostRanges = std::size_t{1} << 16;  // the kernel allows as many mappings

// A slot is in use while `end` is not 0, which is written last and read first.
struct Slot {
  std::atomic<std::uintptr_t> end{0};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> page_bytes{0};
  std::atomic<LostMemory*> lost{nullptr};
};

void on_bus_error(int, siginfo_t* info, void*);

// All watched ranges. A signal handler is given an address and nothing else, so it can only find
// what belongs to it in a table of the whole process.
class Watches {
 public:
  Watches() {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    check(sigaction(SIGBUS, &action, &before_) == 0, "SIGBUS can be handled");
  }

  std::ptrdiff_t add(std::uintptr_t begin, std::uintptr_t bytes, std::uintptr_t page_bytes,
                     LostMemory& lost) {
    const std::lock_guard lock(mutex_);
    std::size_t index = used_;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else if (index == kMostRanges) {
      return -1;
    }
    Slot& slot = slots_[index];
    slot.begin = begin;
    slot.page_bytes = page_bytes;
    slot.lost = &lost;
    slot.end = begin + bytes;
    used_ = std::max(used_.load(), index + 1);
    return static_cast<std::ptrdiff_t>(index);
  }
  void remove(std::ptrdiff_t slot) {
    const std::lock_guard lock(mutex_);
    slots_[static_cast<std::size_t>(slot)].end = 0;
    free_.push_back(static_cast<std::size_t>(slot));
  }

  // Async-signal-safe. Gives the page at the address other memory. Returns false if it is in no
  // range or the system refuses.
  bool replace(std::uintptr_t address) {
    const std::size_t used = used_;
    for (std::size_t i = 0; i < used; ++i) {
      Slot& slot = slots_[i];
      const std::uintptr_t end = slot.end;
      const std::uintptr_t begin = slot.begin;
      if (end == 0 || address < begin || address >= end) {
        continue;
      }
      const std::uintptr_t bytes = slot.page_bytes;
      slot.lost.load()->store(true);
      // Not by mmap(), which tools that watch memory count as an access by this thread.
      return syscall(SYS_mmap, begin + (address - begin) / bytes * bytes, bytes,
                     PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != -1;
    }
    return false;
  }
  // The next access to the address then does what it would have done without any watch.
  void step_aside() { (void)sigaction(SIGBUS, &before_, nullptr); }

 private:
  std::mutex mutex_;               // guards changes
  std::vector<std::size_t> free_;  // slots that were in use
  std::array<Slot, kMostRanges> slots_;
  std::atomic<std::size_t> used_{0};  // slots from here on were never in use
  struct sigaction before_ = {};
};

// Never destroyed, because threads that hang may outlive all else.
Watches& all_watches() {
  static Watches& watches = *new Watches;
  return watches;
}

void on_bus_error(int, siginfo_t* info, void*) {
  const int error = errno;
  if (!all_watches().replace(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    all_watches().step_aside();
  }
  errno = error;
}

}  // namespace

LostMemoryWatch::LostMemoryWatch(std::byte* begin, std::int64_t pages, std::int64_t page_bytes,
                                 LostMemory& lost)
    : slot_(all_watches().add(reinterpret_cast<std::uintptr_t>(begin),
                              static_cast<std::uintptr_t>(pages * page_bytes),
                              static_cast<std::uintptr_t>(page_bytes), lost)) {}

LostMemoryWatch::~LostMemoryWatch() {
  if (slot_ >= 0) {
    all_watches().remove(slot_);
  }
}

}  // namespace protean::cpu
