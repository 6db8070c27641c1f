#pragma once

#include <boost/json/object.hpp>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace protean {

// Parses a JSON text that must be one object of bounded nesting. Of two equal keys the last counts,
// unless `duplicates` refuses them. `name` is for messages.
enum class DuplicateKeys { kLastCounts, kRefuse };
Result<boost::json::object> parse_json_object(
    std::string_view text, const std::string& name,
    DuplicateKeys duplicates = DuplicateKeys::kLastCounts);

Result<boost::json::object> read_json_file(const std::filesystem::path& path);

}  // namespace protean
