#include "cost/ffn_pages.h"

#include <cmath>

namespace protean {

double FfnTensor::padding_at(int degree) const {
  return degree * std::ceil(pages_at(degree)) / pages - 1;
}

std::vector<FfnTensor> ffn_tensors(const KnownModel& model, std::int64_t page_bytes) {
  constexpr double kBf16Bytes = 2;
  const double matrix = kBf16Bytes * model.spec.hidden * model.spec.ffn;
  const auto pages = [&](double bytes) { return bytes / static_cast<double>(page_bytes); };
  if (model.experts > 0) {
    return {{"down", pages(matrix * model.experts)},
            {"gate_up", pages(2 * matrix * model.experts)}};
  }
  return {{"gate", pages(matrix)}, {"up", pages(matrix)}, {"down", pages(matrix)}};
}

}  // namespace protean
