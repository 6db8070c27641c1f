#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "hwy/highway.h"

namespace protean::cpu {

// Runs each test once for every instruction set that this machine can execute.
class EveryTarget : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().DeInit();
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }

  std::vector<float> random_floats(std::int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      value = normal(random_);
    }
    return values;
  }

  // Returns a random signed code. For w8 only one in four codes is large, so that pack_panel()
  // keeps all codes (the sums of codes are limited, see quantized_rows.h).
  int random_code(int bits, std::int64_t input) {
    const int code = static_cast<int>(random_() >> (32 - bits)) - (1 << (bits - 1));
    return bits == 8 && input % 8 != 0 && input % 8 != 3 ? code / 3 : code;
  }

  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_{20240607};
};

inline std::string target_name(const testing::TestParamInfo<std::int64_t>& info) {
  return hwy::TargetName(info.param);
}

}  // namespace protean::cpu

#define PROTEAN_ON_EVERY_TARGET(suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(Cpu, suite, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), \
                           target_name)
