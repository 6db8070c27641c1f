#include "server/answer/embedding_text.h"

#include <fmt/format.h>

#include <cmath>

namespace protean {

std::string numbers_json(const std::vector<float>& values) {
  std::string text = "[";
  for (const float value : values) {
    text += fmt::format("{}{}", text.size() == 1 ? "" : ",", value);
  }
  return text + "]";
}

std::vector<float> unit_length(std::vector<float> values) {
  double squares = 0;
  for (const float value : values) {
    squares += static_cast<double>(value) * value;
  }
  const double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
  for (float& value : values) {
    value = static_cast<float>(value * scale);
  }
  return values;
}

}  // namespace protean
