#include "model/json_file.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <new>
#include <stdexcept>

#include "base/units.h"
#include "model/mapped_file.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::size_t kLargestFile = std::size_t{64} * kMiB;

std::size_t count_keys(const json::value& value) {
  std::size_t keys = 0;
  if (const json::object* object = value.if_object()) {
    keys = object->size();
    for (const auto& member : *object) {
      keys += count_keys(member.value());
    }
  } else if (const json::array* array = value.if_array()) {
    for (const json::value& element : *array) {
      keys += count_keys(element);
    }
  }
  return keys;
}

// Counts keys: in a valid JSON text a colon outside strings follows each key and nothing else.
std::size_t count_colons(std::string_view text) {
  std::size_t colons = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && text[i] == ':') {
      ++colons;
    }
  }
  return colons;
}

}  // namespace

Result<json::object> parse_json_object(std::string_view text, const std::string& name,
                                       DuplicateKeys duplicates) {
  json::error_code error;
  json::value value;
  try {
    value = json::parse(text, error);
  } catch (const std::exception& thrown) {  // out of memory, or a length above the library's limit
    return make_error(ErrorCode::kCorrupt, "{}: its JSON cannot be read: {}", name, thrown.what());
  }
  if (error) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: its JSON is broken ({}): the file is damaged, download it again", name,
                      error.message());
  }
  if (!value.is_object()) {
    return make_error(ErrorCode::kCorrupt, "{}: its JSON is not an object: download it again",
                      name);
  }
  if (duplicates == DuplicateKeys::kRefuse && count_keys(value) != count_colons(text)) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: a name is there twice in one object: convert the model again", name);
  }
  return std::move(value.get_object());
}

Result<json::object> read_json_file(const std::filesystem::path& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file) {
    return file.error();
  }
  const std::span<const std::byte> bytes = file->bytes();
  if (bytes.size() > kLargestFile) {
    return make_error(ErrorCode::kInvalidArgument, "{} has {}: no JSON file of a model is so large",
                      path.string(), format_bytes(static_cast<std::int64_t>(bytes.size())));
  }
  return parse_json_object({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                           path.string());
}

}  // namespace protean
