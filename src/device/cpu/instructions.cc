#include "device/cpu/instructions.h"

#include <cstdlib>
#include <string_view>

#include "hwy/highway.h"

namespace protean::cpu {
namespace {

struct Limit {
  std::string_view asked;
  bool known = true;
  bool amx = true;
};

Limit read_limit() {
  const char* text = std::getenv("PROTEAN_CPU");
  const std::string_view asked = text == nullptr ? "" : text;
  if (asked.empty() || asked == "amx") {
    return {.asked = asked};
  }
  // In Highway, better targets have lower bits.
  if (asked == "avx512") {
    return {.asked = asked, .amx = false};
  }
  if (asked == "avx2") {
    hwy::DisableTargets(HWY_AVX2 - 1);
    return {.asked = asked, .amx = false};
  }
  if (asked == "portable") {
    hwy::DisableTargets(HWY_AVX2 | (HWY_AVX2 - 1));
    return {.asked = asked, .amx = false};
  }
  return {.asked = asked, .known = false};
}

const Limit kLimit = read_limit();

}  // namespace

Status instruction_limit() {
  if (!kLimit.known) {
    return make_error(ErrorCode::kInvalidArgument,
                      "PROTEAN_CPU={} is invalid: use amx, avx512, avx2 or portable", kLimit.asked);
  }
  return {};
}

bool may_use_amx() {
  return kLimit.amx;
}

}  // namespace protean::cpu
