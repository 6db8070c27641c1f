#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "contract/form.h"

namespace protean {

// The precisions at which the tokens of an answer are computed, one span after another, such as
// "bf16:512,w4:1024,bf16:512" in Table 1 of MorphServe.
struct PrecisionSpan {
  Precision precision = Precision::kBf16;
  int tokens = 0;  // at least one
};
using PrecisionSchedule = std::vector<PrecisionSpan>;

Result<PrecisionSchedule> parse_schedule(std::string_view text);
std::string to_string(const PrecisionSchedule& schedule);

}  // namespace protean
