#pragma once

#include <string>
#include <vector>

namespace protean {

// Writes an embedding as a JSON array.
std::string numbers_json(const std::vector<float>& values);

// Scales a vector to length 1. A vector of zeros stays as it is.
std::vector<float> unit_length(std::vector<float> values);

}  // namespace protean
