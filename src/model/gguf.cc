#include "model/gguf.h"

#include <limits>
#include <utility>

#include "model/gguf_parser.h"
#include "model/gguf_value.h"
#include "model/quote.h"

namespace protean {
namespace {

std::string_view type_name(std::uint32_t type) {
  static constexpr std::string_view kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                                "int32",  "float32", "bool",   "string", "array",
                                                "uint64", "int64",   "float64"};
  return type < std::size(kNames) ? kNames[type] : "unknown";
}

std::optional<std::int64_t> integer_at(const std::byte* from, std::uint32_t type) {
  switch (type) {
    case kGgufU8:
      return load_bytes<std::uint8_t>(from);
    case kGgufI8:
      return load_bytes<std::int8_t>(from);
    case kGgufU16:
      return load_bytes<std::uint16_t>(from);
    case kGgufI16:
      return load_bytes<std::int16_t>(from);
    case kGgufU32:
      return load_bytes<std::uint32_t>(from);
    case kGgufI32:
      return load_bytes<std::int32_t>(from);
    case kGgufI64:
      return load_bytes<std::int64_t>(from);
    case kGgufU64: {
      const auto value = load_bytes<std::uint64_t>(from);
      return value <= std::uint64_t{std::numeric_limits<std::int64_t>::max()}
                 ? std::optional(static_cast<std::int64_t>(value))
                 : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> number_at(const std::byte* from, std::uint32_t type) {
  if (type == kGgufF32) {
    return load_bytes<float>(from);
  }
  if (type == kGgufF64) {
    return load_bytes<double>(from);
  }
  const std::optional<std::int64_t> integer = integer_at(from, type);
  return integer ? std::optional(static_cast<double>(*integer)) : std::nullopt;
}

}  // namespace

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  Result<GgufFile> file = open_one(path);
  if (!file) {
    return file;
  }
  const Status parts = file->open_parts(path);
  return parts ? std::move(file) : Result<GgufFile>(parts.error());
}

// Adds the tensors of the other parts, if the model is split. The first part has the metadata.
Status GgufFile::open_parts(const std::filesystem::path& first) {
  constexpr std::int64_t kMostParts = 1000;
  const auto count = find_integer("split.count");
  const auto number = find_integer("split.no");
  if (!count || !number) {
    return !count ? count.error() : number.error();
  }
  const std::int64_t parts = count->value_or(1);
  if (parts <= 1) {
    return {};
  }
  const std::string name = first.filename().string();
  const auto name_of = [&](std::int64_t part) {
    const std::string ending = fmt::format("-{:05}-of-{:05}.gguf", 1, parts);
    return name.ends_with(ending)
               ? fmt::format("{}-{:05}-of-{:05}.gguf", name.substr(0, name.size() - ending.size()),
                             part, parts)
               : std::string();
  };
  if (number->value_or(0) != 0 || parts > kMostParts || name_of(1).empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} is part {} of {}: give the part that is named like "
                      "NAME-00001-of-{:05}.gguf, with the others in its folder",
                      name_, number->value_or(0) + 1, parts, parts);
  }
  for (std::int64_t part = 2; part <= parts; ++part) {
    Result<GgufFile> file = open_one(first.parent_path() / name_of(part));
    if (!file) {
      return make_error(file.error().code, "part {} of {}: {}", part, parts, file.error().message);
    }
    for (auto& [tensor, place] : file->tensors_) {
      if (!tensors_.emplace(tensor, std::move(place)).second) {
        return make_error(ErrorCode::kCorrupt,
                          "{}: an earlier part has tensor {} too: download the parts again",
                          file->name_, quote(tensor));
      }
    }
    parts_.push_back(std::move(file->file_));
  }
  return {};
}

Result<GgufFile> GgufFile::open_one(const std::filesystem::path& path) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped) {
    return mapped.error();
  }
  Result<GgufFile> file = parse(mapped->bytes(), path.string());
  if (file) {
    file->file_ = std::move(*mapped);
  }
  return file;
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  GgufFile file;
  file.bytes_ = bytes;
  file.name_ = std::move(name);
  const Status status = GgufParser(bytes, file).parse();
  if (!status) {
    return status.error();
  }
  return file;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const GgufFile::Value* GgufFile::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

Error GgufFile::wrong_type(std::string_view key, const Value& value, std::string_view want) const {
  return make_error(ErrorCode::kCorrupt, "{}: metadata {} is {}{}, not {}: convert the model again",
                    name_, quote(key), value.is_array ? "an array of " : "", type_name(value.type),
                    want);
}

Result<std::optional<std::int64_t>> GgufFile::find_integer(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) {
    return std::optional<std::int64_t>();
  }
  const auto integer =
      value->is_array ? std::nullopt : integer_at(bytes_.data() + value->offset, value->type);
  if (!integer) {
    return wrong_type(key, *value, "an integer below 2^63");
  }
  return integer;
}

Result<std::optional<double>> GgufFile::find_number(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) {
    return std::optional<double>();
  }
  const auto number =
      value->is_array ? std::nullopt : number_at(bytes_.data() + value->offset, value->type);
  if (!number) {
    return wrong_type(key, *value, "a number");
  }
  return number;
}

Result<std::optional<bool>> GgufFile::find_bool(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) {
    return std::optional<bool>();
  }
  if (value->is_array || value->type != kGgufBool) {
    return wrong_type(key, *value, "a bool");
  }
  return std::optional(bytes_[value->offset] != std::byte{0});
}

Result<std::optional<std::string>> GgufFile::find_string(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) {
    return std::optional<std::string>();
  }
  if (value->is_array || value->type != kGgufString) {
    return wrong_type(key, *value, "a string");
  }
  return std::optional(std::move(strings_at(*value).front()));
}

std::vector<std::string> GgufFile::strings_at(const Value& value) const {
  std::vector<std::string> texts;
  texts.reserve(value.count);
  const std::byte* at = bytes_.data() + value.offset;
  for (std::uint64_t i = 0; i < value.count; ++i) {
    const auto length = load_bytes<std::uint64_t>(at);
    texts.emplace_back(reinterpret_cast<const char*>(at + sizeof(length)), length);
    at += sizeof(length) + length;
  }
  return texts;
}

Result<std::vector<std::string>> GgufFile::strings(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) {
    return std::vector<std::string>();
  }
  if (!value->is_array || value->type != kGgufString) {
    return wrong_type(key, *value, "an array of strings");
  }
  return strings_at(*value);
}

Result<std::vector<float>> GgufFile::floats(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) {
    return std::vector<float>();
  }
  if (!value->is_array || (value->type != kGgufF32 && value->type != kGgufF64)) {
    return wrong_type(key, *value, "an array of floats");
  }
  std::vector<float> numbers(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const std::byte* at = bytes_.data() + value->offset + i * gguf_type_bytes(value->type);
    numbers[i] = static_cast<float>(*number_at(at, value->type));
  }
  return numbers;
}

Result<std::vector<std::int64_t>> GgufFile::integers(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) {
    return std::vector<std::int64_t>();
  }
  std::vector<std::int64_t> numbers(value->is_array ? value->count : 0);
  for (std::uint64_t i = 0; i < numbers.size(); ++i) {
    const std::byte* at = bytes_.data() + value->offset + i * gguf_type_bytes(value->type);
    const std::optional<std::int64_t> number = integer_at(at, value->type);
    if (!number) {
      return wrong_type(key, *value, "an array of integers below 2^63");
    }
    numbers[i] = *number;
  }
  if (!value->is_array) {
    return wrong_type(key, *value, "an array of integers");
  }
  return numbers;
}

Status GgufFile::of_all_parts(Status (MappedFile::*ask)() const) const {
  Status same = (file_.*ask)();
  for (auto part = parts_.begin(); same && part != parts_.end(); ++part) {
    same = (*part.*ask)();
  }
  return same;
}

}  // namespace protean
