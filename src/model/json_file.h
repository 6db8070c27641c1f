#pragma once

#include <boost/json/object.hpp>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace protean {

enum class DuplicateKeys { kLastCounts, kRefuse };

// Parses a JSON text that must be one object, with limited nesting. `name` is for errors.
Result<boost::json::object> parse_json_object(
    std::string_view text, const std::string& name,
    DuplicateKeys duplicates = DuplicateKeys::kLastCounts);

Result<boost::json::object> read_json_file(const std::filesystem::path& path);

}  // namespace protean
