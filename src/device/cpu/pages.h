#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/cpu/lost_memory.h"

namespace protean::cpu {

// Consecutive pages of a pool.
struct PageRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// A device's physical memory: pages, each of which is free or borrowed by one range. A page gets
// memory when it is first borrowed and keeps its contents when it is returned and borrowed again.
// The number of pages is a quota that may change, so that pools can trade memory. Any thread may
// borrow. The pool must outlive its ranges.
class PagePool {
 public:
  // `page_bytes` is a power of two, at least 4 KiB. Pages that are attached together become huge
  // pages of 2 MiB if the system allows it. Memory comes from `nodes` unless they are empty or the
  // system refuses.
  static Result<std::unique_ptr<PagePool>> create(std::int64_t page_bytes, std::int64_t pages,
                                                  std::span<const int> nodes = {});
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  std::int64_t page_bytes() const { return page_bytes_; }
  std::int64_t pages() const;  // the quota
  std::int64_t most_pages() const { return most_pages_; }
  std::int64_t free_pages() const;
  // Returns how many pages of the quota, free or borrowed, have memory of the system.
  std::int64_t backed_pages() const { return backed_pages_; }
  // Sets the quota, from 1 to most_pages(). A smaller one gives the memory of free pages back to
  // the system, and fails with kExhausted and changes nothing if too few pages are free. A larger
  // one gets its memory when it is borrowed.
  Status set_quota(std::int64_t pages);
  // Returns true once an access to a range of the pool has found that its memory is lost. What the
  // ranges hold is then wrong.
  bool lost_memory() const { return lost_memory_; }

 private:
  friend class PageRange;
  PagePool(int file, std::int64_t page_bytes, std::int64_t most_pages);

  struct PagesWanted {
    std::int64_t pages;
    // The pages from a multiple of huge pages to their addresses; empty: the addresses will follow
    // the first page.
    std::optional<std::int64_t> place;
    std::int64_t most;    // pages that the range may have yet, at least `pages`
    std::int64_t behind;  // the page behind the range's last run, or -1
  };
  // Borrows pages in few runs. Where free pages allow it, a run that holds a whole huge page has
  // the same offset from a multiple of huge pages in the file as in the addresses. Elsewhere the
  // system maps small pages, and reads of KV wait for the page table. If too few are free, borrows
  // none.
  Result<std::vector<PageRun>> borrow(const PagesWanted& wanted);
  void give_back(std::span<const PageRun> runs);
  // The following two are called with the mutex held.
  void add_free(const PageRun& run);
  Status withhold(std::int64_t pages);

  const int file_;  // a memfd; page i begins at i * page_bytes
  const std::int64_t page_bytes_;
  const std::int64_t most_pages_;
  LostMemory lost_memory_ = false;
  std::vector<std::uint8_t> backed_;  // page has memory; a borrowed page's is its range's
  std::atomic<std::int64_t> backed_pages_ = 0;
  // 2 MiB of the file are a huge page. Only a range that has all of them reads and writes it.
  std::vector<std::uint8_t> huge_;
  mutable std::mutex mutex_;                   // guards the members below
  std::map<std::int64_t, std::int64_t> free_;  // first page -> count of each run; runs never adjoin
  std::int64_t free_pages_ = 0;
  std::int64_t pages_;             // the quota
  std::vector<PageRun> withheld_;  // pages without memory that are not in the quota
};

// Called between pieces of background work of a few milliseconds each. May block to throttle the
// work. Returns false to abort it.
using MayGoOn = std::function<bool()>;

// A reserved range of addresses. Its front is mapped to borrowed pages, and begins at the same
// offset from a multiple of 2 MiB as the first of them in the pool, for huge pages. The rest
// reads as zeros, so that a device that was given up and wakes up within a copy from there can do
// no harm; a write there is a fault. No other mapping can be placed inside. Functions may be called
// by one thread at a time; other threads may access the attached pages meanwhile.
class PageRange {
 public:
  PageRange() = default;
  static Result<PageRange> reserve(PagePool& pool, std::int64_t most_pages);
  ~PageRange();
  PageRange(PageRange&& other) noexcept;
  PageRange& operator=(PageRange&& other) noexcept;

  // Changes at the first attach() and in leave_addresses() alone.
  std::byte* data() const { return data_; }
  std::int64_t pages() const { return pages_; }
  std::int64_t bytes() const { return pages_ == 0 ? 0 : pages_ * pool_->page_bytes(); }
  std::int64_t most_pages() const { return most_pages_; }

  // Borrows pages and maps them at the end. They contain whatever their last range wrote. A failure
  // changes nothing: kExhausted if the pool or the system has too little memory, kUnavailable if
  // `may_go_on` returned false.
  Status attach(std::int64_t pages, const MayGoOn& may_go_on = {});

  // Maps memory of the system, not of the pool, right behind the attached pages: for what is too
  // small for a page of its own. No pages can be attached or detached afterwards.
  Status attach_tail(std::int64_t bytes);

  // Unmaps the last pages and returns them to the pool.
  void detach(std::int64_t pages);

  // Maps the pages at other addresses, and returns a range of the former ones, without pages. While
  // that one lives, a late write to where a page was goes to memory of its own. A failure changes
  // nothing. Not for a range with a tail.
  Result<PageRange> leave_addresses();

 private:
  void begin_at(std::int64_t phase);
  void ask_for_huge_pages(const PageRun& run, std::int64_t place, std::int64_t before) const;
  Status map(const PageRun& run, std::int64_t place, std::int64_t before) const;
  void unmap(std::int64_t from, std::int64_t count) const;
  std::byte* address(std::int64_t place) const { return data_ + place * pool_->page_bytes(); }

  PagePool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t most_pages_ = 0;
  std::int64_t pages_ = 0;
  std::int64_t phase_ = 0;        // pages from a multiple of huge pages to data_
  std::int64_t slack_bytes_ = 0;  // of addresses behind the range, until the first attach()
  std::vector<PageRun> runs_;     // ordered by address
  LostMemoryWatch watch_;
};

}  // namespace protean::cpu
