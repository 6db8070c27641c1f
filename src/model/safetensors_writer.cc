#include "model/safetensors_writer.h"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::size_t kAlignment = 8;

}  // namespace

std::int64_t PlannedTensor::bytes() const {
  std::int64_t total = type == "F32" || type == "I32" ? 4 : 2;
  check(total == 4 || type == "BF16" || type == "F16", "a planned tensor has one of four types");
  for (const std::int64_t size : shape) {
    total *= size;
  }
  return total;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path,
                                                    const std::vector<PlannedTensor>& tensors) {
  json::object header;
  header["__metadata__"] = json::object{{"format", "pt"}};
  std::int64_t end = 0;
  for (const PlannedTensor& tensor : tensors) {
    const std::int64_t begin = end;
    end += tensor.bytes();
    header[tensor.name] =
        json::object{{"dtype", tensor.type},
                     {"shape", json::array(tensor.shape.begin(), tensor.shape.end())},
                     {"data_offsets", json::array{begin, end}}};
  }
  check(header.size() == tensors.size() + 1, "planned tensors have names of their own");
  std::string text = json::serialize(header);
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const std::uint64_t length = text.size();
  text.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));

  Result<OutputFile> file = OutputFile::create(path);
  if (!file) {
    return file.error();
  }
  const Status written = file->write(std::as_bytes(std::span(text)));
  return written ? Result(SafetensorsWriter(std::move(*file), end)) : written.error();
}

Status SafetensorsWriter::write(std::span<const std::byte> bytes) {
  left_bytes_ -= std::ssize(bytes);
  check(left_bytes_ >= 0, "no more is written than was planned");
  return file_.write(bytes);
}

Status SafetensorsWriter::finish() {
  check(left_bytes_ == 0, "everything planned has been written");
  return file_.finish();
}

}  // namespace protean
