#include "model/safetensors.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstring>
#include <optional>
#include <utility>

#include "model/json_file.h"
#include "model/quote.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's limit

// Returns the bytes of an element; 0 for unknown types, whose tensors may exist but cannot be read.
std::int64_t element_bytes(std::string_view type) {
  static constexpr std::pair<std::string_view, std::int64_t> kTypes[] = {
      {"F64", 8},     {"I64", 8},     {"U64", 8}, {"F32", 4},  {"I32", 4},
      {"U32", 4},     {"F16", 2},     {"I16", 2}, {"BF16", 2}, {"U16", 2},
      {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};
  for (const auto& [name, bytes] : kTypes) {
    if (name == type) {
      return bytes;
    }
  }
  return 0;
}

std::optional<std::int64_t> natural(const json::value& value) {
  if (const std::int64_t* number = value.if_int64(); number != nullptr && *number >= 0) {
    return *number;
  }
  return std::nullopt;
}

std::optional<std::vector<std::int64_t>> naturals(const json::object& entry, std::string_view key) {
  const json::value* value = entry.if_contains(key);
  const json::array* array = value == nullptr ? nullptr : value->if_array();
  if (array == nullptr) {
    return std::nullopt;
  }
  std::vector<std::int64_t> numbers;
  for (const json::value& element : *array) {
    const std::optional<std::int64_t> number = natural(element);
    if (!number) {
      return std::nullopt;
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::optional<std::int64_t> product(std::int64_t first, std::span<const std::int64_t> factors) {
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(first, factor, &first)) {
      return std::nullopt;
    }
  }
  return first;
}

Result<SafetensorsTensor> parse_tensor(const json::value& value, std::span<const std::byte> data) {
  const auto damaged = [](std::string_view what) {
    return make_error(ErrorCode::kCorrupt, "{}: the file is damaged, download it again", what);
  };
  const json::object* entry = value.if_object();
  const json::value* type = entry == nullptr ? nullptr : entry->if_contains("dtype");
  if (type == nullptr || !type->is_string()) {
    return damaged("has no \"dtype\"");
  }
  const auto shape = naturals(*entry, "shape");
  const auto range = naturals(*entry, "data_offsets");
  if (!shape || !range || range->size() != 2) {
    return damaged("has no \"shape\" or \"data_offsets\" of whole numbers from 0");
  }
  const std::int64_t begin = range->front();
  const std::int64_t end = range->back();
  if (begin > end || static_cast<std::uint64_t>(end) > data.size()) {
    return make_error(ErrorCode::kCorrupt,
                      "claims bytes {} to {} of {}: the file is truncated, download it again",
                      begin, end, data.size());
  }
  SafetensorsTensor tensor{
      std::string(type->get_string()), *shape,
      data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))};
  const std::int64_t width = element_bytes(tensor.type);
  if (width != 0 && product(width, tensor.shape) != end - begin) {
    return make_error(ErrorCode::kCorrupt,
                      "has {} bytes, which is not what type {} and shape [{}] need: "
                      "the file is damaged, download it again",
                      end - begin, tensor.type, fmt::join(tensor.shape, ", "));
  }
  return tensor;
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped) {
    return mapped.error();
  }
  Result<SafetensorsFile> file = parse(mapped->bytes(), path.string());
  if (file) {
    file->file_ = std::move(*mapped);
  }
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes, std::string name) {
  SafetensorsFile file;
  file.name_ = std::move(name);
  std::uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    return make_error(ErrorCode::kCorrupt,
                      "{} has {} bytes: too short for a safetensors file, download it again",
                      file.name_, bytes.size());
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  bytes = bytes.subspan(sizeof(length));
  if (length > kLongestHeader || length > bytes.size()) {
    return make_error(ErrorCode::kCorrupt,
                      "{} claims a header of {} bytes but has {} left: it is truncated or not a "
                      "safetensors file, download it again",
                      file.name_, length, bytes.size());
  }
  const auto header = parse_json_object({reinterpret_cast<const char*>(bytes.data()), length},
                                        file.name_, DuplicateKeys::kRefuse);
  if (!header) {
    return header.error();
  }
  const std::span<const std::byte> data = bytes.subspan(length);
  for (const auto& member : *header) {
    if (member.key() == "__metadata__") {
      continue;
    }
    Result<SafetensorsTensor> tensor = parse_tensor(member.value(), data);
    if (!tensor) {
      return make_error(tensor.error().code, "{}: tensor {} {}", file.name_, quote(member.key()),
                        tensor.error().message);
    }
    file.tensors_.emplace(member.key(), std::move(*tensor));
  }
  const Status covered = file.check_coverage(data);
  return covered ? Result<SafetensorsFile>(std::move(file)) : covered.error();
}

Status SafetensorsFile::check_coverage(std::span<const std::byte> data) const {
  using Entry = std::pair<const std::string, SafetensorsTensor>;
  std::vector<const Entry*> order;
  for (const Entry& entry : tensors_) {
    if (!entry.second.bytes.empty()) {
      order.push_back(&entry);
    }
  }
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return a->second.bytes.data() < b->second.bytes.data();
  });
  const std::byte* covered = data.data();
  for (const Entry* entry : order) {
    const std::span<const std::byte> bytes = entry->second.bytes;
    if (bytes.data() != covered) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: tensor {} {}: the file is damaged, download it again", name_,
                        quote(entry->first),
                        bytes.data() < covered ? "overlaps another" : "leaves a hole before it");
    }
    covered = bytes.data() + bytes.size();
  }
  if (covered != data.data() + data.size()) {
    return make_error(
        ErrorCode::kCorrupt,
        "{} has {} bytes after its last tensor: the file is damaged, download it again", name_,
        data.data() + data.size() - covered);
  }
  return {};
}

const SafetensorsTensor* SafetensorsFile::find_tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace protean
