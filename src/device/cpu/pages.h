#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.h"

namespace protean::cpu {

// Neighbouring pages of a pool.
struct PageRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// A device's physical memory: a fixed number of pages which ranges borrow, so that sum over ranges
// + free is always the budget. A page is backed from its first loan on and keeps what was written
// to it when it changes hands. Any thread may borrow; the lock is held for bookkeeping only. It
// must outlive its ranges.
class PagePool {
 public:
  // page_bytes is a power of two from 4 KiB on; from 2 MiB on, pages become huge ones where the
  // system lets them. Memory comes from these NUMA nodes where there is a choice and a list.
  static Result<std::unique_ptr<PagePool>> create(std::int64_t page_bytes, std::int64_t pages,
                                                  std::span<const int> nodes = {});
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  std::int64_t page_bytes() const { return page_bytes_; }
  std::int64_t pages() const { return pages_; }
  std::int64_t free_pages() const;

 private:
  friend class PageRange;
  PagePool(int file, std::int64_t page_bytes, std::int64_t pages);

  // As few runs as there can be; an error and nothing borrowed where pages are short.
  Result<std::vector<PageRun>> borrow(std::int64_t pages);
  void give_back(std::span<const PageRun> runs);

  const int file_;  // a memfd; page i lies at i * page_bytes
  const std::int64_t page_bytes_;
  const std::int64_t pages_;
  std::vector<std::uint8_t> backed_;           // by page; a borrowed one's is the borrower's
  mutable std::mutex mutex_;                   // of what follows
  std::map<std::int64_t, std::int64_t> free_;  // runs: first page, count; none touch each other
  std::int64_t free_pages_ = 0;
};

// Asked between pieces of some milliseconds of work beside running steps: waits as long as it
// likes; false gives the work up.
using MayGoOn = std::function<bool()>;

// Consecutive addresses, begun on 2 MiB, of which the front is borrowed pages and the rest cannot
// be touched. No other mapping can come to lie inside. Used by one thread at a time; whoever reads
// or writes the memory meanwhile stays below what is attached.
class PageRange {
 public:
  PageRange() = default;
  static Result<PageRange> reserve(PagePool& pool, std::int64_t most_pages);
  ~PageRange();
  PageRange(PageRange&& other) noexcept;
  PageRange& operator=(PageRange&& other) noexcept;

  std::byte* data() const { return data_; }  // stays for life
  std::int64_t pages() const { return pages_; }
  std::int64_t bytes() const { return pages_ == 0 ? 0 : pages_ * pool_->page_bytes(); }
  std::int64_t most_pages() const { return most_pages_; }

  // Pages at the end, mapped and backed, with what their last borrower left in them. A failure
  // changes nothing: kExhausted where the pool or the system is short, kUnavailable where
  // `may_go_on` said no.
  Status attach(std::int64_t pages, const MayGoOn& may_go_on = {});

  // Gives the last pages back.
  void detach(std::int64_t pages);

 private:
  void ask_for_huge_pages(const PageRun& run, std::int64_t place) const;
  Status map(const PageRun& run, std::int64_t place) const;
  void unmap(std::int64_t from, std::int64_t count) const;
  std::byte* address(std::int64_t place) const { return data_ + place * pool_->page_bytes(); }

  PagePool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t most_pages_ = 0;
  std::int64_t pages_ = 0;
  std::vector<PageRun> runs_;  // in the order of their addresses
};

}  // namespace protean::cpu
