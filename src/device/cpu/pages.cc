#include "device/cpu/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/seat.h"

namespace protean::cpu {
namespace {

constexpr std::int64_t kSmallestPageBytes = 4 * kKiB;
constexpr std::int64_t kHugePageBytes = 2 * kMiB;
constexpr std::int64_t kLargestPageBytes = kGiB;
// Bytes mapped in one piece of background work: about a millisecond for page tables, or some
// milliseconds of zeroing. Without `may_go_on` all bytes are one piece, because each call that
// creates huge pages interrupts all processors.
constexpr std::int64_t kPieceBytes = 8 * kMiB;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, which is not in the headers of Debian 12

Error refused(std::int64_t bytes, std::string_view what, std::string_view advice) {
  const int reason = errno;
  return make_error(ErrorCode::kExhausted, "the system refused {} {} ({}): {}", format_bytes(bytes),
                    what, std::strerror(reason), advice);
}

constexpr std::string_view kAdviceOnMaps =
    "use less memory, or raise the limits on address space (ulimit -v) and mappings "
    "(vm.max_map_count)";

// Allocates the memory of a part of `file`. Existing contents do not change.
bool allocate(int file, std::int64_t offset, std::int64_t bytes) {
  int outcome = 0;
  do {
    outcome = fallocate(file, 0, offset, bytes);
  } while (outcome != 0 && errno == EINTR);
  return outcome == 0;
}

// Gives the memory of a part of `file` back to the system.
bool release(int file, std::int64_t offset, std::int64_t bytes) {
  int outcome = 0;
  do {
    outcome = fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
  } while (outcome != 0 && errno == EINTR);
  return outcome == 0;
}

bool map_shared(std::byte* at, std::int64_t bytes, int file, std::int64_t offset, int flags) {
  return mmap(at, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_FIXED | flags, file, offset) != MAP_FAILED;
}

void return_addresses(std::byte* at, std::int64_t bytes) {
  check(bytes == 0 || munmap(at, static_cast<std::size_t>(bytes)) == 0,
        "munmap of memory that we mapped");
}

// Replaces what is mapped at an address by private memory, or fails and changes nothing. The memory
// is there before, so that only the kernel's own lack of memory can leave a hole. Not by mremap(),
// since tools that watch memory count that as an access by this thread.
bool cover(std::byte* at, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return false;
  }
  if (syscall(SYS_mremap, memory, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at) == -1) {
    const int why = errno;
    return_addresses(static_cast<std::byte*>(memory), bytes);
    errno = why;
    return false;
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<PagePool>> PagePool::create(std::int64_t page_bytes, std::int64_t most_pages,
                                                   std::span<const int> nodes) {
  const bool power_of_two = page_bytes > 0 && (page_bytes & (page_bytes - 1)) == 0;
  if (!power_of_two || page_bytes < kSmallestPageBytes || page_bytes > kLargestPageBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a page of {} bytes is invalid: it must be a power of two from {} to {}",
                      page_bytes, format_bytes(kSmallestPageBytes),
                      format_bytes(kLargestPageBytes));
  }
  if (most_pages < 1 || most_pages > std::numeric_limits<std::int64_t>::max() / page_bytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} pages of {} are invalid: there must be at least 1, and less than 8 EiB",
                      most_pages, format_bytes(page_bytes));
  }
  const int file = memfd_create("protean-pages", MFD_CLOEXEC);
  if (file < 0) {
    return refused(
        most_pages * page_bytes, "of shared memory",
        "raise the limit on open files (ulimit -n) or let the sandbox allow memfd_create");
  }
  if (ftruncate(file, most_pages * page_bytes) != 0) {
    Error error = refused(most_pages * page_bytes, "of shared memory",
                          "use less memory, or raise the limit on file size (ulimit -f)");
    close(file);
    return error;
  }
  (void)place_memory(file, most_pages * page_bytes, nodes);  // works without, if the system refuses
  return std::unique_ptr<PagePool>(new PagePool(file, page_bytes, most_pages));
}

PagePool::PagePool(int file, std::int64_t page_bytes, std::int64_t most_pages)
    : file_(file),
      page_bytes_(page_bytes),
      most_pages_(most_pages),
      backed_(static_cast<std::size_t>(most_pages), 0),
      huge_(static_cast<std::size_t>(ceil_div(most_pages * page_bytes, kHugePageBytes)), 0),
      free_{{0, most_pages}},
      free_pages_(most_pages),
      pages_(most_pages) {}

PagePool::~PagePool() {
  check(free_pages_ == pages_, "all pages are free when their pool is destroyed");
  close(file_);
}

std::int64_t PagePool::free_pages() const {
  const std::lock_guard lock(mutex_);
  return free_pages_;
}

std::int64_t PagePool::pages() const {
  const std::lock_guard lock(mutex_);
  return pages_;
}

Status PagePool::set_quota(std::int64_t pages) {
  check(pages >= 1 && pages <= most_pages_, "a quota is within what the pool was created for");
  const std::lock_guard lock(mutex_);
  if (pages < pages_) {
    if (Status withheld = withhold(pages_ - pages); !withheld.ok()) {
      return withheld;
    }
  }
  for (std::int64_t missing = pages - pages_; missing > 0;) {
    PageRun& last = withheld_.back();
    const PageRun added{last.first, std::min(missing, last.count)};
    last = {last.first + added.count, last.count - added.count};
    missing -= added.count;
    if (last.count == 0) {
      withheld_.pop_back();
    }
    add_free(added);
  }
  pages_ = pages;
  return {};
}

// Takes free pages out of the pool, those with the highest addresses first.
Status PagePool::withhold(std::int64_t pages) {
  if (pages > free_pages_) {
    return make_error(ErrorCode::kExhausted,
                      "{} pages of {} are to be given up, but only {} of {} are free", pages,
                      format_bytes(page_bytes_), free_pages_, pages_);
  }
  std::vector<PageRun> taken;
  for (std::int64_t missing = pages; missing > 0;) {
    const auto last = std::prev(free_.end());
    const std::int64_t count = std::min(missing, last->second);
    taken.push_back({last->first + last->second - count, count});
    last->second -= count;
    if (last->second == 0) {
      free_.erase(last);
    }
    free_pages_ -= count;
    missing -= count;
  }
  bool released = true;
  for (const PageRun& run : taken) {
    const auto from = backed_.begin() + run.first;
    if (std::find(from, from + run.count, 1) != from + run.count) {
      released = release(file_, run.first * page_bytes_, run.count * page_bytes_) && released;
      backed_pages_ -= std::count(from, from + run.count, 1);
      std::fill(from, from + run.count, std::uint8_t{0});
      std::fill(huge_.begin() + run.first * page_bytes_ / kHugePageBytes,
                huge_.begin() + ceil_div((run.first + run.count) * page_bytes_, kHugePageBytes),
                std::uint8_t{0});
    }
  }
  if (!released) {
    Error error = refused(pages * page_bytes_, "to be given back", "keep the quota");
    for (const PageRun& run : taken) {
      add_free(run);
    }
    return error;
  }
  withheld_.insert(withheld_.end(), taken.begin(), taken.end());
  return {};
}

// Takes the pages behind the range's last run if they are free and aligned. Otherwise takes the
// smallest free run with room for all that the range may have yet; if there is none, the longest
// runs. A run that holds a whole huge page begins at the same offset in the file as in the
// addresses.
Result<std::vector<PageRun>> PagePool::borrow(const PagesWanted& wanted) {
  const std::lock_guard lock(mutex_);
  if (wanted.pages > free_pages_) {
    return make_error(ErrorCode::kExhausted,
                      "{} pages of {} are needed, but only {} of {} are free", wanted.pages,
                      format_bytes(page_bytes_), free_pages_, pages_);
  }
  const std::int64_t huge = std::max<std::int64_t>(1, kHugePageBytes / page_bytes_);
  std::vector<PageRun> runs;
  std::optional<std::int64_t> begin = wanted.place;
  std::int64_t missing = wanted.pages;
  while (missing > 0) {
    const std::int64_t room = wanted.most - (wanted.pages - missing);
    const auto skipped = [&](const auto& run) -> std::int64_t {
      const std::int64_t place = begin.value_or(run.first) + wanted.pages - missing;
      const std::int64_t skip = (huge + (place - run.first) % huge) % huge;
      const std::int64_t end = place + std::min(room, run.second - skip);
      return round_up(place, huge) + huge <= end ? skip : 0;
    };
    const auto better = [&](const auto& a, const auto& b) {
      const std::int64_t of_a = a.second - skipped(a);
      const std::int64_t of_b = b.second - skipped(b);
      const bool a_fits = of_a >= room;
      const bool b_fits = of_b >= room;
      return a_fits != b_fits ? a_fits : a_fits ? of_a < of_b : of_a > of_b;
    };
    auto best = runs.empty() ? free_.find(wanted.behind) : free_.end();
    if (best == free_.end() || skipped(*best) > 0) {
      best = std::min_element(free_.begin(), free_.end(), better);
    }
    check(best != free_.end(), "the free runs have all free pages");
    const auto [first, count] = *best;
    const std::int64_t before = skipped(*best);
    const std::int64_t taken = std::min(count - before, missing);
    free_.erase(best);
    if (before > 0) {
      free_.emplace(first, before);
    }
    if (before + taken < count) {
      free_.emplace(first + before + taken, count - before - taken);
    }
    runs.push_back({first + before, taken});
    begin = begin.value_or(first);
    missing -= taken;
  }
  free_pages_ -= wanted.pages;
  return runs;
}

void PagePool::give_back(std::span<const PageRun> runs) {
  const std::lock_guard lock(mutex_);
  for (const PageRun& run : runs) {
    add_free(run);
  }
}

void PagePool::add_free(const PageRun& run) {
  const std::int64_t first = run.first;
  std::int64_t count = run.count;
  const auto after = free_.lower_bound(first);
  check(after == free_.end() || after->first >= first + count, "a page is returned once");
  const auto before = after == free_.begin() ? free_.end() : std::prev(after);
  check(before == free_.end() || before->first + before->second <= first,
        "a page is returned once");
  if (after != free_.end() && after->first == first + count) {
    count += after->second;
    free_.erase(after);
  }
  if (before != free_.end() && before->first + before->second == first) {
    before->second += count;
  } else {
    free_.emplace(first, count);
  }
  free_pages_ += run.count;
}

Result<PageRange> PageRange::reserve(PagePool& pool, std::int64_t most_pages) {
  const std::int64_t page_bytes = pool.page_bytes();
  if (most_pages < 1 ||
      most_pages > (std::numeric_limits<std::int64_t>::max() - 2 * kHugePageBytes) / page_bytes) {
    return make_error(ErrorCode::kInvalidArgument, "cannot reserve addresses for {} pages of {}",
                      most_pages, format_bytes(page_bytes));
  }
  // Maps more addresses than asked, so that it can begin at any offset from a multiple of huge
  // pages.
  const std::int64_t bytes = most_pages * page_bytes;
  const std::int64_t mapped = bytes + 2 * kHugePageBytes;
  void* address = mmap(nullptr, static_cast<std::size_t>(mapped), PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return refused(bytes, "of address space", kAdviceOnMaps);
  }
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  const auto before =
      static_cast<std::int64_t>(-value % static_cast<std::uintptr_t>(kHugePageBytes));
  auto* const begin = static_cast<std::byte*>(address);
  PageRange range;
  range.pool_ = &pool;
  range.data_ = begin + before;
  range.most_pages_ = most_pages;
  range.slack_bytes_ = kHugePageBytes;
  return_addresses(begin, before);
  return_addresses(range.data_ + bytes + range.slack_bytes_,
                   mapped - before - bytes - range.slack_bytes_);
  range.watch_ = LostMemoryWatch(range.data_, most_pages, page_bytes, pool.lost_memory_);
  return range;
}

// Moves the range to so many pages behind a multiple of huge pages, before the first is attached.
void PageRange::begin_at(std::int64_t phase) {
  const std::int64_t page_bytes = pool_->page_bytes();
  watch_ = LostMemoryWatch();
  std::byte* const begin = std::exchange(data_, data_ + phase * page_bytes);
  return_addresses(begin, phase * page_bytes);
  return_addresses(data_ + most_pages_ * page_bytes,
                   std::exchange(slack_bytes_, 0) - phase * page_bytes);
  phase_ = phase;
  watch_ = LostMemoryWatch(data_, most_pages_, page_bytes, pool_->lost_memory_);
}

PageRange::~PageRange() {
  if (data_ != nullptr) {
    watch_ = LostMemoryWatch();  // no other mapping of these addresses is watched
    return_addresses(data_, most_pages_ * pool_->page_bytes() + slack_bytes_);
    pool_->give_back(runs_);
  }
}

PageRange::PageRange(PageRange&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      most_pages_(std::exchange(other.most_pages_, 0)),
      pages_(std::exchange(other.pages_, 0)),
      phase_(std::exchange(other.phase_, 0)),
      slack_bytes_(std::exchange(other.slack_bytes_, 0)),
      runs_(std::exchange(other.runs_, {})),
      watch_(std::move(other.watch_)) {}

PageRange& PageRange::operator=(PageRange&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(most_pages_, other.most_pages_);
  std::swap(pages_, other.pages_);
  std::swap(phase_, other.phase_);
  std::swap(slack_bytes_, other.slack_bytes_);
  std::swap(runs_, other.runs_);
  std::swap(watch_, other.watch_);
  return *this;
}

// Asks for huge pages where the file has none yet and is aligned like the addresses. Creating a
// huge page from one existing small page takes a third of the time that merging 512 small pages
// takes. If this fails, small pages are used. The `before` pages in front of the run are attached.
void PageRange::ask_for_huge_pages(const PageRun& run, std::int64_t place,
                                   std::int64_t before) const {
  const std::int64_t page_bytes = pool_->page_bytes();
  const std::int64_t from = round_up((run.first - before) * page_bytes, kHugePageBytes);
  const std::int64_t end = (run.first + run.count) * page_bytes / kHugePageBytes * kHugePageBytes;
  if ((run.first - phase_ - place) * page_bytes % kHugePageBytes != 0 || from >= end) {
    return;
  }
  const auto huge = [&](std::int64_t at) { return pool_->huge_.begin() + at / kHugePageBytes; };
  // One mapping of a whole huge page of the file has it at once.
  const auto is_asked_for = [&](std::int64_t at) {
    return *huge(at) == 0 || at < run.first * page_bytes;
  };
  bool mapped = false;
  for (std::int64_t at = from; at < end;) {
    std::int64_t to = at;
    for (; to < end && is_asked_for(to); to += kHugePageBytes) {
      const auto first = pool_->backed_.begin() + to / page_bytes;
      const auto last = pool_->backed_.begin() + ceil_div(to + kHugePageBytes, page_bytes);
      if (std::find(first, last, 1) == last) {
        (void)allocate(pool_->file_, to, kSmallestPageBytes);
      }
    }
    if (to == at) {
      at += kHugePageBytes;
      continue;
    }
    mapped = mapped || map_shared(address(place), run.count * page_bytes, pool_->file_,
                                  run.first * page_bytes, 0);
    std::byte* const here = address(place - run.first) + at;
    if (mapped && madvise(here, static_cast<std::size_t>(to - at), kCollapse) == 0) {
      std::fill(huge(at), huge(to), std::uint8_t{1});
    }
    at = to;
  }
}

// Allocates the memory of new pages now, so that a system without memory returns an error.
// Otherwise the first access would end the process.
Status PageRange::map(const PageRun& run, std::int64_t place, std::int64_t before) const {
  const std::int64_t page_bytes = pool_->page_bytes();
  const std::span<std::uint8_t> backed =
      std::span(pool_->backed_)
          .subspan(static_cast<std::size_t>(run.first), static_cast<std::size_t>(run.count));
  const bool fresh = std::find(backed.begin(), backed.end(), 0) != backed.end();
  ask_for_huge_pages(run, place, before);
  if (fresh && !allocate(pool_->file_, run.first * page_bytes, run.count * page_bytes)) {
    return refused(run.count * page_bytes, "of shared memory",
                   "raise the memory limit of the process, or lower --device-memory");
  }
  pool_->backed_pages_ += std::count(backed.begin(), backed.end(), 0);
  std::fill(backed.begin(), backed.end(), 1);
  if (!map_shared(address(place), run.count * page_bytes, pool_->file_, run.first * page_bytes,
                  MAP_POPULATE)) {
    return refused(run.count * page_bytes, "of mapped pages", kAdviceOnMaps);
  }
  return {};
}

void PageRange::unmap(std::int64_t from, std::int64_t count) const {
  const std::int64_t bytes = count * pool_->page_bytes();
  // Replaces the mapping in place, so that no other mapping can be placed here and no read faults
  // in between. If the system has no mapping left, the pages are only removed from the page table:
  // a late read then finds what their next range wrote.
  if (mmap(address(from), static_cast<std::size_t>(bytes), PROT_READ,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    (void)madvise(address(from), static_cast<std::size_t>(bytes), MADV_DONTNEED);
  }
}

Status PageRange::attach(std::int64_t pages, const MayGoOn& may_go_on) {
  check(pages >= 0 && pages_ + pages <= most_pages_, "the range has addresses for the pages");
  if (pages == 0) {
    return {};
  }
  const std::int64_t behind = runs_.empty() ? -1 : runs_.back().first + runs_.back().count;
  const bool begins = slack_bytes_ > 0;
  Result<std::vector<PageRun>> borrowed =
      pool_->borrow({.pages = pages,
                     .place = begins ? std::nullopt : std::optional(phase_ + pages_),
                     .most = most_pages_ - pages_,
                     .behind = behind});
  if (!borrowed) {
    return borrowed.error();
  }
  const std::int64_t huge = std::max<std::int64_t>(1, kHugePageBytes / pool_->page_bytes());
  if (begins) {
    begin_at(borrowed->front().first % huge);
  }
  // Pieces end where huge pages do.
  const std::int64_t piece = may_go_on
                                 ? std::max<std::int64_t>(1, kPieceBytes / pool_->page_bytes())
                                 : phase_ + pages_ + pages;
  Status done;
  std::int64_t place = pages_;
  std::int64_t before = borrowed->front().first == behind ? runs_.back().count : 0;
  for (const PageRun& run : *borrowed) {
    std::int64_t count = 0;
    for (std::int64_t from = 0; from < run.count && done.ok(); from += count) {
      if (may_go_on && !may_go_on()) {
        done = make_error(ErrorCode::kUnavailable, "aborted before all pages were attached");
        break;
      }
      const std::int64_t into = (phase_ + place) % huge;
      count = std::min(piece - into, run.count - from);
      done = map({run.first + from, count}, place, std::min(before, into));
      place += count;
      before = from + count;
    }
    before = 0;
  }
  if (!done) {
    unmap(pages_, pages);
    pool_->give_back(*borrowed);
    return done;
  }
  auto added = borrowed->begin();
  if (added->first == behind) {
    runs_.back().count += added++->count;
  }
  runs_.insert(runs_.end(), added, borrowed->end());
  pages_ += pages;
  return {};
}

Status PageRange::attach_tail(std::int64_t bytes) {
  check(bytes >= 0 && pages_ * pool_->page_bytes() + bytes <= most_pages_ * pool_->page_bytes(),
        "the range has addresses for its tail");
  if (bytes > 0 && mmap(address(pages_), static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return refused(bytes, "of memory", kAdviceOnMaps);
  }
  return {};
}

Result<PageRange> PageRange::leave_addresses() {
  Result<PageRange> other = reserve(*pool_, most_pages_);
  if (!other) {
    return other;
  }
  if (slack_bytes_ == 0) {
    other->begin_at(phase_);
  }
  std::int64_t place = 0;
  for (const PageRun& run : runs_) {
    if (const Status mapped = other->map(run, place, 0); !mapped) {
      return mapped.error();
    }
    place += run.count;
  }
  if (pages_ > 0 && !cover(data_, bytes())) {
    return refused(bytes(), "of memory", kAdviceOnMaps);
  }
  std::swap(runs_, other->runs_);
  std::swap(pages_, other->pages_);
  std::swap(*this, *other);
  other->watch_ = LostMemoryWatch();  // it has no memory of the pool
  return other;
}

void PageRange::detach(std::int64_t pages) {
  check(pages >= 0 && pages <= pages_, "the range has the pages");
  if (pages == 0) {
    return;
  }
  unmap(pages_ - pages, pages);
  std::vector<PageRun> returned;
  std::int64_t left = pages;
  while (left > 0) {
    PageRun& last = runs_.back();
    const std::int64_t count = std::min(left, last.count);
    last.count -= count;
    returned.push_back({last.first + last.count, count});
    left -= count;
    if (last.count == 0) {
      runs_.pop_back();
    }
  }
  pages_ -= pages;
  pool_->give_back(returned);
}

}  // namespace protean::cpu
