#pragma once

#include <boost/json/object.hpp>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace protean {

// A JSON text that must be one object. Nesting is bounded. Of two equal keys the last one counts,
// unless they are refused. name is for messages.
enum class DuplicateKeys { kLastCounts, kRefuse };
Result<boost::json::object> parse_json_object(
    std::string_view text, const std::string& name,
    DuplicateKeys duplicates = DuplicateKeys::kLastCounts);

Result<boost::json::object> read_json_file(const std::filesystem::path& path);

}  // namespace protean
