#include "tests/checkpoints/gguf_writer.h"

namespace protean {
namespace {

template <class T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void put_string(std::string& to, std::string_view text) {
  put<std::uint64_t>(to, text.size());
  to += text;
}

void put_array_header(std::string& to, std::string_view key, std::uint32_t type,
                      std::uint64_t count) {
  put_string(to, key);
  put<std::uint32_t>(to, 9);
  put(to, type);
  put(to, count);
}

}  // namespace

void GgufWriter::scalar(std::string_view key, std::uint32_t type, const void* value,
                        std::size_t bytes) {
  put_string(metadata_, key);
  put(metadata_, type);
  metadata_.append(static_cast<const char*>(value), bytes);
  ++values_;
}

void GgufWriter::add(std::string_view key, std::string_view value) {
  std::string text;
  put_string(text, value);
  scalar(key, 8, text.data(), text.size());
}

void GgufWriter::add(std::string_view key, const std::vector<std::string>& values) {
  put_array_header(metadata_, key, 8, values.size());
  for (const std::string& value : values) {
    put_string(metadata_, value);
  }
  ++values_;
}

void GgufWriter::add(std::string_view key, const std::vector<float>& values) {
  put_array_header(metadata_, key, 6, values.size());
  for (const float value : values) {
    put(metadata_, value);
  }
  ++values_;
}

void GgufWriter::add(std::string_view key, const std::vector<std::int32_t>& values) {
  put_array_header(metadata_, key, 5, values.size());
  for (const std::int32_t value : values) {
    put(metadata_, value);
  }
  ++values_;
}

void GgufWriter::add_tensor(std::string_view name, const std::vector<std::uint64_t>& dimensions,
                            std::uint32_t type, std::string_view data) {
  data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
  put_string(tensor_infos_, name);
  put(tensor_infos_, static_cast<std::uint32_t>(dimensions.size()));
  for (const std::uint64_t dimension : dimensions) {
    put(tensor_infos_, dimension);
  }
  put(tensor_infos_, type);
  put<std::uint64_t>(tensor_infos_, data_.size());
  data_ += data;
  ++tensors_;
}

std::string GgufWriter::file() const {
  std::string bytes = "GGUF";
  put(bytes, version_);
  put(bytes, tensors_);
  put(bytes, values_);
  bytes += metadata_ + tensor_infos_;
  if (tensors_ > 0) {
    bytes.resize((bytes.size() + alignment_ - 1) / alignment_ * alignment_);
  }
  return bytes + data_;
}

}  // namespace protean
