#include "base/units.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

TEST(Units, FormatsBytes) {
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(24 * kMiB), "24.0 MiB");
}

TEST(Units, ParsesBytes) {
  EXPECT_EQ(*parse_bytes("4GiB"), 4 * kGiB);
  EXPECT_EQ(*parse_bytes("512m"), 512 * kMiB);
  EXPECT_EQ(*parse_bytes("1.5 KB"), 1536);
  EXPECT_EQ(*parse_bytes("77"), 77);
  EXPECT_EQ(*parse_bytes("1024T"), 1024 * 1024 * kGiB);
  for (const char* wrong :
       {"", "GiB", "-1", "4 parsecs", "4giga", "1e40", "nan", "4 K i", "1025T"}) {
    EXPECT_FALSE(parse_bytes(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace protean
