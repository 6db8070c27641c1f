#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace protean {

// An open-addressed map from two integers to a rank and a result. Encoding consists mostly of these
// lookups, so entries of 16 bytes are in one flat array. Read-only use is thread-safe.
class PairTable {
 public:
  struct Entry {
    std::uint64_t key = kEmpty;
    std::uint32_t rank = 0;
    std::int32_t result = -1;
    friend bool operator==(const Entry&, const Entry&) = default;
  };

  // Does nothing if the pair is present. The pair (-1, -1) is reserved.
  void insert(std::int32_t first, std::int32_t second, std::uint32_t rank, std::int32_t result) {
    if ((used_ + 1) * 2 > slots_.size()) {
      grow();
    }
    Entry& entry = slots_[slot_of(key_of(first, second))];
    if (entry.key == kEmpty) {
      entry = {key_of(first, second), rank, result};
      ++used_;
    }
  }

  const Entry* find(std::int32_t first, std::int32_t second) const {
    if (used_ == 0) {
      return nullptr;
    }
    const Entry& entry = slots_[slot_of(key_of(first, second))];
    return entry.key == kEmpty ? nullptr : &entry;
  }

  std::size_t size() const { return used_; }

  // Returns true if the same pairs were inserted in the same order.
  friend bool operator==(const PairTable&, const PairTable&) = default;

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  static std::uint64_t key_of(std::int32_t first, std::int32_t second) {
    return (std::uint64_t{static_cast<std::uint32_t>(first)} << 32) |
           static_cast<std::uint32_t>(second);
  }

  std::size_t slot_of(std::uint64_t key) const {
    std::uint64_t mixed = (key ^ (key >> 29)) * 0x9E3779B97F4A7C15ull;
    mixed ^= mixed >> 32;
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = mixed & mask;
    while (slots_[slot].key != kEmpty && slots_[slot].key != key) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  void grow() {
    std::vector<Entry> old(slots_.empty() ? 64 : slots_.size() * 2);
    old.swap(slots_);
    for (const Entry& entry : old) {
      if (entry.key != kEmpty) {
        slots_[slot_of(entry.key)] = entry;
      }
    }
  }

  std::vector<Entry> slots_;
  std::size_t used_ = 0;
};

}  // namespace protean
