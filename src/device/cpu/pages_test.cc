#include "device/cpu/pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"

namespace protean::cpu {
namespace {

std::unique_ptr<PagePool> pool_of(std::int64_t page_bytes, std::int64_t pages) {
  Result<std::unique_ptr<PagePool>> pool = PagePool::create(page_bytes, pages);
  EXPECT_TRUE(pool.ok()) << pool.error().message;
  return std::move(*pool);
}

PageRange range_of(PagePool& pool, std::int64_t most_pages) {
  Result<PageRange> range = PageRange::reserve(pool, most_pages);
  EXPECT_TRUE(range.ok()) << range.error().message;
  return std::move(*range);
}

TEST(PagePool, RefusesInvalidSizes) {
  for (const std::int64_t page_bytes :
       {std::int64_t{0}, std::int64_t{-4096}, 2 * kKiB, 3 * kMiB, 2 * kGiB, std::int64_t{5000}}) {
    EXPECT_EQ(PagePool::create(page_bytes, 4).error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(PagePool::create(4 * kKiB, 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(PagePool::create(2 * kMiB, INT64_MAX / kMiB).error().code, ErrorCode::kInvalidArgument);
}

TEST(PageRange, AttachesAndDetachesAtItsEnd) {
  const auto pool = pool_of(64 * kKiB, 10);
  PageRange range = range_of(*pool, 8);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(range.data()) % (2 * kMiB), 0U);
  EXPECT_EQ(range.bytes(), 0);
  ASSERT_TRUE(range.attach(3).ok());
  std::memset(range.data(), 0x5a, static_cast<std::size_t>(range.bytes()));
  ASSERT_TRUE(range.attach(2).ok());
  EXPECT_EQ(range.pages(), 5);
  EXPECT_EQ(range.bytes(), 5 * 64 * kKiB);
  EXPECT_EQ(pool->free_pages(), 5);
  range.detach(1);
  EXPECT_EQ(pool->free_pages(), 6);
  EXPECT_TRUE(std::all_of(range.data(), range.data() + 3 * 64 * kKiB,
                          [](std::byte b) { return b == std::byte{0x5a}; }));
  range.detach(4);
  EXPECT_EQ(pool->free_pages(), 10);
}

TEST(PageRange, LateWritesToAddressesThatItLeftDoNoHarm) {
  const auto pool = pool_of(64 * kKiB, 10);
  PageRange range = range_of(*pool, 8);
  const PageRange gap = [&] {  // so that the pages of the range do not adjoin
    EXPECT_TRUE(range.attach(2).ok());
    PageRange other = range_of(*pool, 8);
    EXPECT_TRUE(other.attach(1).ok());
    EXPECT_TRUE(range.attach(3).ok());
    return other;
  }();
  std::byte* const before = range.data();
  const auto bytes = static_cast<std::size_t>(range.bytes());
  for (std::size_t i = 0; i < bytes; ++i) {
    before[i] = static_cast<std::byte>(i / (64 * kKiB) + 1);
  }
  {
    const Result<PageRange> left = range.leave_addresses();
    ASSERT_TRUE(left.ok()) << left.error().message;
    EXPECT_NE(range.data(), before);
    EXPECT_EQ(range.pages(), 5);
    EXPECT_EQ(range.most_pages(), 8);
    EXPECT_EQ(pool->free_pages(), 4);
    std::memset(before, 0x5a, bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(range.data()[i], static_cast<std::byte>(i / (64 * kKiB) + 1)) << i;
    }
  }
  ASSERT_TRUE(range.attach(3).ok());
  range.detach(8);
  EXPECT_EQ(pool->free_pages(), 9);
}

TEST(PageRange, ATailLiesBehindThePagesAndIsNotOfThePool) {
  const auto pool = pool_of(4 * kKiB, 4);
  PageRange range = range_of(*pool, 5);
  ASSERT_TRUE(range.attach(3).ok());
  ASSERT_TRUE(range.attach_tail(5000).ok());
  EXPECT_EQ(pool->free_pages(), 1);
  EXPECT_EQ(range.bytes(), 3 * 4 * kKiB);
  std::memset(range.data(), 0x5a, static_cast<std::size_t>(range.bytes()) + 5000);
  const PageRange moved = std::move(range);
  EXPECT_EQ(moved.data()[3 * 4 * kKiB + 4999], std::byte{0x5a});
}

TEST(PagePool, ASmallerQuotaTakesFreePagesAndTheirMemory) {
  const auto pool = pool_of(4 * kKiB, 8);
  PageRange range = range_of(*pool, 8);
  ASSERT_TRUE(range.attach(8).ok());
  std::memset(range.data(), 0x5a, static_cast<std::size_t>(range.bytes()));
  range.detach(5);
  const Status refused = pool->set_quota(2);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_EQ(pool->pages(), 8);
  EXPECT_EQ(pool->free_pages(), 5);
  EXPECT_EQ(pool->backed_pages(), 8);
  ASSERT_TRUE(pool->set_quota(4).ok());
  EXPECT_EQ(pool->pages(), 4);
  EXPECT_EQ(pool->free_pages(), 1);
  EXPECT_EQ(pool->backed_pages(), 4);
  EXPECT_EQ(range.attach(2).error().code, ErrorCode::kExhausted);
  EXPECT_EQ(range.data()[3 * 4 * kKiB - 1], std::byte{0x5a}) << "borrowed pages stay";
  ASSERT_TRUE(pool->set_quota(7).ok());
  EXPECT_EQ(pool->free_pages(), 4);
  EXPECT_EQ(pool->backed_pages(), 4) << "a page gets memory when it is borrowed";
  ASSERT_TRUE(range.attach(4).ok());
  EXPECT_EQ(pool->backed_pages(), 7);
  const std::byte* const attached = range.data() + 3 * 4 * kKiB;
  EXPECT_EQ(std::count(attached, attached + 4 * 4 * kKiB, std::byte{0}), 3 * 4 * kKiB)
      << "the system has taken back the memory of the pages that were given up";
  EXPECT_EQ(pool->most_pages(), 8);
}

// Quotas change while ranges grow and shrink on another thread.
TEST(PagePool, TheQuotaIsNeverExceeded) {
  const auto pool = pool_of(4 * kKiB, 64);
  std::jthread borrower([&] {
    std::mt19937_64 random(1);
    PageRange range = range_of(*pool, 64);
    for (int i = 0; i < 2000; ++i) {
      const auto pages = static_cast<std::int64_t>(random() % 16);
      if (range.pages() + pages <= 64 && random() % 2 == 0) {
        (void)range.attach(pages);
      } else {
        range.detach(std::min(range.pages(), pages));
      }
    }
  });
  std::mt19937_64 random(2);
  for (int i = 0; i < 2000; ++i) {
    const auto wanted = static_cast<std::int64_t>(1 + random() % 64);
    const std::int64_t before = pool->pages();
    const Status set = pool->set_quota(wanted);
    ASSERT_EQ(pool->pages(), set.ok() ? wanted : before);
    ASSERT_TRUE(set.ok() || wanted < before) << "a larger quota is never refused";
    const std::int64_t free = pool->free_pages();
    ASSERT_TRUE(free >= 0 && free <= pool->pages());
  }
  borrower.join();
  EXPECT_EQ(pool->free_pages(), pool->pages()) << "conserved";
}

TEST(PageRange, MovesItsPages) {
  const auto pool = pool_of(4 * kKiB, 4);
  PageRange first = range_of(*pool, 4);
  ASSERT_TRUE(first.attach(3).ok());
  std::byte* const data = first.data();
  PageRange second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.pages(), 0);  // NOLINT(bugprone-use-after-move): tests the moved-from state
  PageRange third;
  third = std::move(second);
  third.data()[3 * 4 * kKiB - 1] = std::byte{1};
  EXPECT_EQ(pool->free_pages(), 1);
  third = PageRange();
  EXPECT_EQ(pool->free_pages(), 4);
}

TEST(PageRange, ShortageChangesNothing) {
  const auto pool = pool_of(4 * kKiB, 6);
  PageRange holder = range_of(*pool, 6);
  PageRange asker = range_of(*pool, 100);
  ASSERT_TRUE(holder.attach(4).ok());
  ASSERT_TRUE(asker.attach(1).ok());
  asker.data()[0] = std::byte{7};
  const Status refused = asker.attach(2);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_NE(refused.error().message.find("1 of 6 are free"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(asker.pages(), 1);
  EXPECT_EQ(asker.data()[0], std::byte{7});
  EXPECT_EQ(pool->free_pages(), 1);
  holder.detach(1);
  EXPECT_TRUE(asker.attach(2).ok());
}

TEST(PageRange, AbortedWorkChangesNothing) {
  const auto pool = pool_of(2 * kMiB, 40);
  PageRange range = range_of(*pool, 40);
  ASSERT_TRUE(range.attach(1).ok());
  int asked = 0;
  const Status stopped = range.attach(39, [&] { return ++asked < 3; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(range.pages(), 1);
  EXPECT_EQ(pool->free_pages(), 39);
  EXPECT_TRUE(range.attach(39).ok());
}

// Long free runs stay long although ranges borrow and return pages.
TEST(PageRange, PrefersConsecutivePages) {
  const auto pool = pool_of(4 * kKiB, 100);
  PageRange small[3] = {range_of(*pool, 10), range_of(*pool, 10), range_of(*pool, 10)};
  for (PageRange& range : small) {
    ASSERT_TRUE(range.attach(10).ok());
  }
  small[1].detach(10);  // leaves a free run of 10 pages, besides the 70 at the end
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
      count += line.find("protean-pages") != std::string::npos ? 1 : 0;
    }
    return count;
  };
  const int before = mappings();
  PageRange large = range_of(*pool, 60);
  ASSERT_TRUE(large.attach(60).ok());
  PageRange fitting = range_of(*pool, 10);
  ASSERT_TRUE(fitting.attach(10).ok());
  EXPECT_EQ(mappings(), before + 2);
  PageRange rest = range_of(*pool, 10);
  ASSERT_TRUE(rest.attach(10).ok());
  EXPECT_EQ(mappings(), before + 3);
}

// Returns the offset in the pool's file of what is mapped at an address.
std::int64_t file_offset_of(const std::byte* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    std::istringstream fields(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::int64_t offset = 0;
    char dash = 0;
    std::string permissions;
    fields >> std::hex >> begin >> dash >> end >> permissions >> offset;
    if (begin <= at && at < end) {
      return offset + static_cast<std::int64_t>(at - begin);
    }
  }
  return -1;
}

std::int64_t address_of(const PageRange& range) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(range.data()));
}

// Ranges lie behind each other without gaps, which would be filled with small pieces of others, and
// yet have huge pages, because each begins in its addresses as in the file.
TEST(PageRange, ARangeBeginsWhereItsFirstPageDoes) {
  const auto pool = pool_of(256 * kKiB, 64);
  PageRange small = range_of(*pool, 1), large = range_of(*pool, 20), other = range_of(*pool, 11);
  std::int64_t at = 0;
  for (PageRange* range : {&small, &large, &other}) {
    ASSERT_TRUE(range->attach(range->most_pages()).ok());
    EXPECT_EQ(file_offset_of(range->data()), at);
    EXPECT_EQ(address_of(*range) % (2 * kMiB), at % (2 * kMiB));
    at += range->bytes();
  }
  std::memset(large.data(), 0x5a, static_cast<std::size_t>(large.bytes()));
  large.detach(3);  // inside a huge page
  EXPECT_EQ(std::count(large.data(), large.data() + large.bytes(), std::byte{0x5a}), large.bytes());
}

// Returns the bytes of a range that are mapped as huge pages.
std::int64_t huge_bytes_of(const PageRange& range) {
  std::ifstream maps("/proc/self/smaps");
  std::int64_t bytes = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string name;
    if (line.find(':') > line.find('-')) {  // "begin-end permissions ...", not "Name: value kB"
      std::int64_t begin = 0;
      fields >> std::hex >> begin;
      inside = address_of(range) <= begin && begin < address_of(range) + range.bytes();
    } else if (std::int64_t kib = 0; inside && fields >> name >> kib && name == "ShmemPmdMapped:") {
      bytes += kib * kKiB;
    }
  }
  return bytes;
}

// Returns true if the system makes huge pages of so much shared memory. Asks it without a pool.
bool makes_huge_pages(std::int64_t bytes) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  const int file = memfd_create("protean-pages-test", MFD_CLOEXEC);
  const auto size = static_cast<std::size_t>(bytes);
  void* const memory = ftruncate(file, bytes) == 0
                           ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                           : MAP_FAILED;
  bool made = false;
  if (memory != MAP_FAILED) {
    std::memset(memory, 1, size);
    made = madvise(memory, size, kCollapse) == 0;
    munmap(memory, size);
  }
  close(file);
  return made;
}

// A huge page whose first part comes before the rest, as KV grows in a group, becomes one when it
// is whole. What is written there stays.
TEST(PageRange, PartsThatComeOneAfterTheOtherBecomeAHugePage) {
  const auto pool = pool_of(256 * kKiB, 64);
  PageRange whole = range_of(*pool, 64);
  ASSERT_TRUE(whole.attach(64).ok());
  const std::int64_t huge_bytes = huge_bytes_of(whole);
  whole.detach(64);
  PageRange grows = range_of(*pool, 16);
  ASSERT_TRUE(grows.attach(13).ok());
  std::memset(grows.data(), 0x5a, static_cast<std::size_t>(grows.bytes()));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(grows.attach(1).ok());
  }
  EXPECT_EQ(std::count(grows.data(), grows.data() + 13 * 256 * kKiB, std::byte{0x5a}),
            13 * 256 * kKiB);
  if (!makes_huge_pages(16 * kMiB)) {
    GTEST_SKIP() << "this system has no huge pages for shared memory";
  }
  EXPECT_EQ(huge_bytes, 16 * kMiB);
  EXPECT_EQ(huge_bytes_of(grows), 4 * kMiB);
}

// The system maps a huge page only where the file and the addresses are aligned alike.
TEST(PageRange, PagesThatComeLaterAreAlignedToHugePages) {
  const auto pool = pool_of(256 * kKiB, 64);
  PageRange grows = range_of(*pool, 48), other = range_of(*pool, 1), filling = range_of(*pool, 7);
  ASSERT_TRUE(grows.attach(15).ok());
  ASSERT_TRUE(other.attach(1).ok());
  EXPECT_EQ(file_offset_of(other.data()), 15 * 256 * kKiB);
  ASSERT_TRUE(grows.attach(20).ok());
  const std::int64_t after = file_offset_of(grows.data() + 15 * 256 * kKiB);
  EXPECT_EQ(after % (2 * kMiB), 15 * 256 * kKiB % (2 * kMiB));
  ASSERT_TRUE(filling.attach(7).ok());
  EXPECT_EQ(file_offset_of(filling.data()), 4 * kMiB) << "the gap before it is for small ones";
}

// Pages in few runs have more huge pages, so a range that may grow begins where most is free and
// goes on there, and one that may not fills the smallest gap.
TEST(PageRange, ARangeThatMayGrowGoesOnBehindItsLastRun) {
  const auto pool = pool_of(256 * kKiB, 64);
  PageRange gap = range_of(*pool, 8), wall = range_of(*pool, 8);
  PageRange grows = range_of(*pool, 32), fixed = range_of(*pool, 8);
  ASSERT_TRUE(gap.attach(8).ok());
  ASSERT_TRUE(wall.attach(8).ok());
  gap.detach(8);
  ASSERT_TRUE(grows.attach(8).ok());
  ASSERT_TRUE(fixed.attach(8).ok());
  ASSERT_TRUE(grows.attach(16).ok());
  EXPECT_EQ(file_offset_of(fixed.data()), 0);
  EXPECT_EQ(file_offset_of(grows.data()), 4 * kMiB);
  EXPECT_EQ(file_offset_of(grows.data() + grows.bytes() - 1), 10 * kMiB - 1);
}

TEST(PageRangeDeathTest, AWriteBeyondAttachedPagesFaultsAndAReadFindsZeros) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto pool = pool_of(4 * kKiB, 8);
  PageRange range = range_of(*pool, 8);
  ASSERT_TRUE(range.attach(4).ok());
  range.detach(2);
  volatile std::byte* const data = range.data();
  data[2 * 4 * kKiB - 1] = std::byte{1};
  for (const std::int64_t place : {2, 5}) {  // one that had a page, and one that never had
    const std::byte seen = data[place * 4 * kKiB];
    EXPECT_EQ(seen, std::byte{0});
  }
  EXPECT_DEATH(data[2 * 4 * kKiB] = std::byte{1}, "");
  EXPECT_DEATH(data[5 * 4 * kKiB] = std::byte{1}, "");
}

TEST(PageRangeDeathTest, AttachingBeyondTheRangeIsABug) {
  const auto pool = pool_of(4 * kKiB, 8);
  PageRange range = range_of(*pool, 2);
  EXPECT_DEATH((void)range.attach(3), "has addresses");
  EXPECT_DEATH(range.detach(1), "has the pages");
}

TEST(PageRange, NoOtherMappingIsPlacedInside) {
  const auto pool = pool_of(2 * kMiB, 8);
  PageRange range = range_of(*pool, 8);
  ASSERT_TRUE(range.attach(8).ok());
  range.detach(5);
  std::vector<void*> others;
  for (int i = 0; i < 200; ++i) {
    others.push_back(mmap(nullptr, 2 * kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const auto* at = static_cast<std::byte*>(others.back());
    EXPECT_TRUE(at + 2 * kMiB <= range.data() || at >= range.data() + 16 * kMiB);
  }
  for (void* other : others) {
    munmap(other, 2 * kMiB);
  }
}

TEST(PageRange, ReportsThatAddressesRanOut) {
  const auto pool = pool_of(2 * kMiB, 1);
  const Result<PageRange> range = PageRange::reserve(*pool, std::int64_t{1} << 38);
  ASSERT_FALSE(range.ok());
  EXPECT_EQ(range.error().code, ErrorCode::kExhausted);
  EXPECT_NE(range.error().message.find("vm.max_map_count"), std::string::npos)
      << range.error().message;
}

// A limit on file size stands in for a system without memory: both fail when pages are allocated.
TEST(PagePool, ReportsThatTheSystemHasNoMemory) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = static_cast<rlim_t>(kMiB), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto refused = PagePool::create(2 * kMiB, 8);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  (void)std::signal(SIGXFSZ, ignored);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_NE(refused.error().message.find("ulimit -f"), std::string::npos)
      << refused.error().message;
}

std::int64_t rss_shmem_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssShmem:")) {
      return std::stoll(line.substr(9)) * kKiB;
    }
  }
  return -1;
}

TEST(PageRange, ResidentMemoryIsThatOfBorrowedPages) {
  for (const std::int64_t page_bytes : {2 * kMiB, 64 * kKiB}) {
    const std::int64_t before = rss_shmem_bytes();
    ASSERT_GE(before, 0);
    const auto pool = pool_of(page_bytes, 128 * kMiB / page_bytes);
    PageRange first = range_of(*pool, pool->pages());
    PageRange second = range_of(*pool, pool->pages());
    const auto expect_borrowed = [&] {
      const auto borrowed = static_cast<double>(first.bytes() + second.bytes());
      EXPECT_NEAR(static_cast<double>(rss_shmem_bytes() - before), borrowed,
                  0.05 * borrowed + static_cast<double>(kMiB));
    };
    ASSERT_TRUE(first.attach(pool->pages() / 2).ok());
    expect_borrowed();
    ASSERT_TRUE(second.attach(pool->pages() / 2).ok());
    expect_borrowed();
    first.detach(pool->pages() / 4);
    expect_borrowed();
    ASSERT_TRUE(second.attach(pool->pages() / 4).ok());
    expect_borrowed();
    second = PageRange();
    expect_borrowed();
  }
}

// Writes into each page a value made from the range, the place and the time of attaching, and finds
// pages that two ranges share or that moved.
class StormyRange {
 public:
  StormyRange(PagePool& pool, std::uint64_t name, std::int64_t most_pages)
      : page_bytes_(pool.page_bytes()), name_(name), range_(range_of(pool, most_pages)) {}

  void act(std::mt19937_64& random) {
    const auto below = [&](std::int64_t end) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
    };
    if (random() % 2 == 0) {
      const std::int64_t room = range_.most_pages() - range_.pages();
      const std::int64_t wanted = below(room + 1);
      const std::int64_t from = range_.pages();
      if (const Status attached = range_.attach(wanted); attached.ok()) {
        ASSERT_EQ(range_.pages(), from + wanted);
        for (std::int64_t page = from; page < range_.pages(); ++page) {
          mark(page);
        }
      } else {
        ASSERT_EQ(attached.error().code, ErrorCode::kExhausted);
        ASSERT_EQ(range_.pages(), from);
      }
    } else {
      range_.detach(below(range_.pages() + 1));
    }
    for (std::int64_t page = 0; page < range_.pages(); ++page) {
      ASSERT_TRUE(marked(page)) << "range " << name_ << ", page " << page;
    }
  }

  std::int64_t pages() const { return range_.pages(); }

 private:
  std::uint64_t value(std::int64_t page) const {
    return name_ * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(page);
  }
  // The first and the last word are checked, in case only a part of a page is mapped wrongly.
  std::byte* first(std::int64_t page) const { return range_.data() + page * page_bytes_; }
  std::byte* last(std::int64_t page) const { return first(page + 1) - sizeof(std::uint64_t); }
  void mark(std::int64_t page) const {
    const std::uint64_t word = value(page);
    std::memcpy(first(page), &word, sizeof(word));
    std::memcpy(last(page), &word, sizeof(word));
  }
  bool marked(std::int64_t page) const {
    const std::uint64_t word = value(page);
    return std::memcmp(first(page), &word, sizeof(word)) == 0 &&
           std::memcmp(last(page), &word, sizeof(word)) == 0;
  }

  std::int64_t page_bytes_;
  std::uint64_t name_;
  PageRange range_;
};

TEST(PagePool, PagesAreConservedInAStorm) {
  constexpr int kThreads = 4;
  constexpr int kRangesOfAThread = 3;
  constexpr int kRounds = 40;
  constexpr int kActs = 25;
  for (const std::int64_t page_bytes : {4 * kKiB, 2 * kMiB}) {
    const std::int64_t pages = page_bytes > kMiB ? 24 : 200;
    const auto pool = pool_of(page_bytes, pages);
    std::atomic<std::int64_t> borrowed{0};
    std::atomic<bool> failed{false};
    std::barrier all(kThreads, [&]() noexcept {
      if (borrowed.exchange(0) + pool->free_pages() != pages) {
        failed = true;
      }
    });
    std::vector<std::thread> threads;
    for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937_64 random(thread);
        std::vector<StormyRange> ranges;
        for (std::uint64_t i = 0; i < kRangesOfAThread; ++i) {
          ranges.emplace_back(*pool, thread * kRangesOfAThread + i + 1, pages);
        }
        for (int round = 0; round < kRounds; ++round) {
          for (int act = 0; act < kActs; ++act) {
            ranges[random() % kRangesOfAThread].act(random);
          }
          for (const StormyRange& range : ranges) {
            borrowed += range.pages();
          }
          all.arrive_and_wait();  // the ranges rest while their pages are counted
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_FALSE(failed);
    EXPECT_EQ(pool->free_pages(), pages);
  }
}

}  // namespace
}  // namespace protean::cpu
