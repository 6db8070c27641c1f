#include "cost/link_bytes.h"

#include <gtest/gtest.h>

#include <array>

namespace protean {
namespace {

TEST(LinkBytes, ALinkCarriesTheBytesOfAllItsDevices) {
  const std::array<std::int64_t, 3> bytes = {1000, 500, 0};
  EXPECT_EQ(most_bytes({}, bytes), 1000) << "not shared";
  EXPECT_EQ(most_bytes(std::array{0, 1, 1}, bytes), 1000);
  EXPECT_EQ(most_bytes(std::array{0, 0, 1}, bytes), 1500);
  EXPECT_EQ(bytes_by_link(std::array{2, 2, 1}, bytes),
            (std::map<int, std::int64_t>{{1, 0}, {2, 1500}}));
}

}  // namespace
}  // namespace protean
