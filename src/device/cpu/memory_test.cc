#include "device/cpu/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/units.h"

namespace protean::cpu {
namespace {

TEST(Region, IsZeroedWritableAndAligned) {
  for (const std::int64_t bytes :
       {std::int64_t{1}, 4095 * std::int64_t{1}, 4097 * std::int64_t{1}, 2 * kMiB, 5 * kMiB + 3}) {
    Result<Region> region = Region::map(bytes);
    ASSERT_TRUE(region.ok()) << region.error().message;
    EXPECT_EQ(region->bytes(), bytes);
    const std::int64_t alignment = bytes >= 2 * kMiB ? 2 * kMiB : 4 * kKiB;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region->data()) % alignment, 0U);
    EXPECT_TRUE(std::all_of(region->data(), region->data() + bytes,
                            [](std::byte b) { return b == std::byte{0}; }));
    std::memset(region->data(), 0x5a, static_cast<std::size_t>(bytes));
    EXPECT_EQ(region->data()[bytes - 1], std::byte{0x5a});
  }
}

TEST(Region, MovesItsMemory) {
  Region first = Region::map(kMiB).value();
  std::byte* const data = first.data();
  Region second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): tests the moved-from state
  Region third = Region::map(kMiB).value();
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  third.data()[0] = std::byte{1};
}

TEST(Region, OfZeroBytesIsEmpty) {
  const Region region = Region::map(0).value();
  EXPECT_EQ(region.data(), nullptr);
  EXPECT_EQ(region.bytes(), 0);
}

TEST(Region, ReportsTheRefusedSize) {
  const Result<Region> huge = Region::map(std::int64_t{1} << 60);
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().code, ErrorCode::kExhausted);
  EXPECT_NE(huge.error().message.find(format_bytes(std::int64_t{1} << 60)), std::string::npos)
      << huge.error().message;
  EXPECT_EQ(Region::map(-1).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Region::map(INT64_MAX).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace protean::cpu
