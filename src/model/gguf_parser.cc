#include "model/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "model/dequantize.h"
#include "model/gguf_value.h"
#include "model/quote.h"

namespace protean {
namespace {

constexpr std::uint64_t kLongestName = 65535;  // the format's limit for keys
constexpr std::uint32_t kMostDimensions = 4;

// Returns the bytes of a tensor by its dimensions, whose rows are whole blocks; nothing if the
// number overflows.
std::optional<std::uint64_t> tensor_bytes(const GgufTensor& tensor, const BlockFormat& format) {
  const std::int64_t columns = tensor.dimensions.empty() ? 1 : tensor.dimensions.front();
  if (columns % format.elements != 0) {
    return std::nullopt;
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(columns / format.elements, format.bytes, &bytes)) {
    return std::nullopt;
  }
  for (std::size_t i = 1; i < tensor.dimensions.size(); ++i) {
    if (__builtin_mul_overflow(bytes, tensor.dimensions[i], &bytes)) {
      return std::nullopt;
    }
  }
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace

template <class T>
bool GgufParser::read(T& value, std::string_view what) {
  if (left() < sizeof(T)) {
    return fail(ErrorCode::kCorrupt,
                "ends inside {} at byte {}: the file is truncated, download it again", what, at_);
  }
  value = load_bytes<T>(bytes_.data() + at_);
  at_ += sizeof(T);
  return true;
}

bool GgufParser::skip(std::uint64_t bytes, std::string_view what) {
  if (left() < bytes) {
    return fail(ErrorCode::kCorrupt,
                "{} at byte {} claims {} bytes but {} are left: the file is truncated or damaged, "
                "download it again",
                what, at_, bytes, left());
  }
  at_ += bytes;
  return true;
}

bool GgufParser::read_string(std::string& text, std::uint64_t longest, std::string_view what) {
  std::uint64_t length = 0;
  if (!read(length, what)) {
    return false;
  }
  if (length > longest) {
    return fail(ErrorCode::kCorrupt,
                "{} at byte {} claims {} bytes: at most {} are allowed, the file is damaged", what,
                at_, length, longest);
  }
  const std::byte* begin = bytes_.data() + at_;
  if (!skip(length, what)) {
    return false;
  }
  text.assign(reinterpret_cast<const char*>(begin), length);
  return true;
}

Status GgufParser::parse() {
  bool good = parse_header();
  for (std::uint64_t i = 0; good && i < values_; ++i) {
    good = parse_value();
  }
  good = good && parse_alignment();
  for (std::uint64_t i = 0; good && i < tensors_; ++i) {
    good = parse_tensor();
  }
  good = good && place_tensors() && refuse_overlaps();
  return good ? Status() : Status(*error_);
}

bool GgufParser::parse_header() {
  constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  if (!read(magic, "the header")) {
    return false;
  }
  if (magic != kMagic) {
    return fail(ErrorCode::kInvalidArgument, "is not a GGUF file: it does not start with \"GGUF\"");
  }
  if (!read(version, "the header")) {
    return false;
  }
  if (version != 2 && version != 3) {
    return fail(ErrorCode::kUnsupported,
                "GGUF version {} is not supported{}: convert the model with a current llama.cpp",
                version, (version & 0xFFFFU) == 0 ? " (a big-endian file)" : "");
  }
  file_.version_ = static_cast<int>(version);
  if (!read(tensors_, "the header") || !read(values_, "the header")) {
    return false;
  }
  constexpr std::uint64_t kSmallestValue = 13;   // empty key, type, one byte
  constexpr std::uint64_t kSmallestTensor = 24;  // empty name, no dimensions, type, offset
  if (values_ > left() / kSmallestValue || tensors_ > left() / kSmallestTensor) {
    return fail(ErrorCode::kCorrupt,
                "claims {} metadata values and {} tensors, more than its {} bytes can hold: "
                "download it again",
                values_, tensors_, bytes_.size());
  }
  return true;
}

bool GgufParser::parse_value() {
  std::string key;
  GgufFile::Value value;
  if (!read_string(key, kLongestName, "a metadata key") || !read(value.type, "a metadata type")) {
    return false;
  }
  value.is_array = value.type == kGgufArray;
  if (value.is_array &&
      (!read(value.type, "an array's type") || !read(value.count, "an array's length"))) {
    return false;
  }
  value.offset = at_;
  if (value.type == kGgufArray) {
    return fail(ErrorCode::kUnsupported,
                "metadata {} is an array of arrays: not supported, remove the key", quote(key));
  }
  if (gguf_type_bytes(value.type) == 0 && value.type != kGgufString) {
    return fail(ErrorCode::kCorrupt,
                "metadata {} has unknown type {}: the file is damaged or newer than this program",
                quote(key), value.type);
  }
  if (!skip_array(value)) {
    return false;
  }
  if (!file_.values_.emplace(key, value).second) {
    return fail(ErrorCode::kCorrupt, "metadata {} is there twice: convert the model again",
                quote(key));
  }
  return true;
}

// Reads a value; a scalar is stored as an array of one.
bool GgufParser::skip_array(GgufFile::Value& value) {
  if (value.type != kGgufString) {
    const std::uint64_t bytes = gguf_type_bytes(value.type);
    if (value.count > left() / bytes) {
      return fail(
          ErrorCode::kCorrupt,
          "an array at byte {} claims {} elements, more than the file holds: download it again",
          at_, value.count);
    }
    return skip(value.count * bytes, "an array");
  }
  for (std::uint64_t i = 0; i < value.count; ++i) {
    std::uint64_t length = 0;
    if (!read(length, "a string's length") || !skip(length, "a string")) {
      return false;
    }
  }
  return true;
}

bool GgufParser::parse_alignment() {
  const auto alignment = file_.find_integer("general.alignment");
  if (!alignment.ok()) {
    return fail(ErrorCode::kCorrupt,
                "general.alignment is not an integer: convert the model again");
  }
  if (!alignment.value()) {
    return true;
  }
  const std::int64_t value = **alignment;
  if (value <= 0 || value > (std::int64_t{1} << 31) ||
      !std::has_single_bit(static_cast<std::uint64_t>(value))) {
    return fail(ErrorCode::kCorrupt,
                "general.alignment is {}: it must be a power of two, convert the model again",
                value);
  }
  alignment_ = static_cast<std::uint64_t>(value);
  return true;
}

bool GgufParser::parse_tensor() {
  std::string name;
  std::uint32_t count = 0;
  if (!read_string(name, kLongestName, "a tensor name") || !read(count, "a tensor's dimensions")) {
    return false;
  }
  if (count > kMostDimensions) {
    return fail(ErrorCode::kCorrupt,
                "tensor {} claims {} dimensions: at most {} exist, the file is damaged",
                quote(name), count, kMostDimensions);
  }
  GgufTensor tensor;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint64_t size = 0;
    if (!read(size, "a tensor's dimensions")) {
      return false;
    }
    if (size > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      return fail(ErrorCode::kCorrupt, "tensor {} has a dimension of {}: the file is damaged",
                  quote(name), size);
    }
    tensor.dimensions.push_back(static_cast<std::int64_t>(size));
  }
  std::uint64_t offset = 0;
  if (!read(tensor.type, "a tensor's type") || !read(offset, "a tensor's offset")) {
    return false;
  }
  const auto [entry, is_new] = file_.tensors_.emplace(std::move(name), std::move(tensor));
  if (!is_new) {
    return fail(ErrorCode::kCorrupt, "tensor {} is there twice: convert the model again",
                quote(entry->first));
  }
  offsets_.emplace_back(&entry->first, offset);
  return true;
}

bool GgufParser::place_tensors() {
  const std::uint64_t padding = (alignment_ - at_ % alignment_) % alignment_;
  if (!offsets_.empty() && !skip(padding, "the padding before the tensors")) {
    return false;
  }
  for (const auto& [name, offset] : offsets_) {
    GgufTensor& tensor = file_.tensors_.find(*name)->second;
    if (offset % alignment_ != 0) {
      return fail(
          ErrorCode::kCorrupt,
          "tensor {} starts at {}, not a multiple of the alignment {}: convert the model again",
          quote(*name), offset, alignment_);
    }
    const GgmlType* type = find_ggml_type(tensor.type);
    const auto bytes = type == nullptr ? 0 : tensor_bytes(tensor, type->format);
    if (!bytes) {
      return fail(
          ErrorCode::kCorrupt,
          "tensor {} has rows of no whole {} blocks or an impossible size: convert the model again",
          quote(*name), type->format.name);
    }
    if (offset > left() || *bytes > left() - offset) {
      return fail(ErrorCode::kCorrupt,
                  "tensor {} needs {} bytes at {} of {} bytes of tensors: the file is truncated, "
                  "download it again",
                  quote(*name), *bytes, offset, left());
    }
    tensor.bytes = bytes_.subspan(at_ + offset, *bytes);
  }
  return true;
}

bool GgufParser::refuse_overlaps() const {
  std::vector<const std::pair<const std::string, GgufTensor>*> order;
  for (const auto& entry : file_.tensors_) {
    if (!entry.second.bytes.empty()) {
      order.push_back(&entry);
    }
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->second.bytes.data() < b->second.bytes.data();
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::span<const std::byte> before = order[i - 1]->second.bytes;
    if (before.data() + before.size() > order[i]->second.bytes.data()) {
      return fail(ErrorCode::kCorrupt, "tensors {} and {} overlap: convert the model again",
                  quote(order[i - 1]->first), quote(order[i]->first));
    }
  }
  return true;
}

}  // namespace protean
