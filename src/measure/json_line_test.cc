#include "measure/json_line.h"

#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <limits>

namespace protean {
namespace {

TEST(JsonLine, NumbersThatAreNotFiniteAreNull) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const boost::json::object report{
      {"perplexity", kInfinity},
      {"tokens", 3},
      {"schedules", boost::json::array{{{"kl", kNan}, {"delta", -kInfinity}}, 0.5}}};
  EXPECT_EQ(json_line(report),
            "{\"perplexity\":null,\"tokens\":3,"
            "\"schedules\":[{\"kl\":null,\"delta\":null},5E-1]}\n");
}

}  // namespace
}  // namespace protean
