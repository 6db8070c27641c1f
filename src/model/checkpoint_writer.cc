#include "model/checkpoint_writer.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "device/cpu/bf16.h"
#include "model/output_file.h"
#include "model/safetensors_writer.h"

namespace protean {
namespace {

constexpr std::int64_t kElementsAtOnce = 8 << 20;
constexpr std::int64_t kGgufAlignment = 32;

std::int64_t rows_of(const NeededTensor& need) {
  return need.columns == 0 ? 1 : need.rows;
}

std::int64_t width_of(const NeededTensor& need) {
  return need.columns == 0 ? need.rows : need.columns;
}

using WriteBytes = std::function<Status(std::span<const std::byte>)>;

// Writes a tensor in chunks, as bf16 or f32.
Status stream_tensor(const Checkpoint& checkpoint, const NeededTensor& need, bool as_f32,
                     const WriteBytes& write) {
  const std::int64_t width = width_of(need);
  const std::int64_t some = std::max<std::int64_t>(1, kElementsAtOnce / width);
  std::vector<float> values;
  std::vector<std::uint16_t> halves;
  for (std::int64_t row = 0; row < rows_of(need); row += some) {
    const std::int64_t count = std::min(some, rows_of(need) - row);
    values.resize(static_cast<std::size_t>(count * width));
    checkpoint.read_rows(need.role, need.layer, row, count, values.data());
    halves.resize(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), cpu::bf16_from);
    Status written =
        write(as_f32 ? std::as_bytes(std::span(values)) : std::as_bytes(std::span(halves)));
    if (!written) {
      return written;
    }
  }
  checkpoint.release(need.role, need.layer);
  return {};
}

template <class T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void put_string(std::string& to, std::string_view text) {
  put<std::uint64_t>(to, text.size());
  to += text;
}

bool is_vector(const NeededTensor& need) {
  return need.columns == 0;
}

std::int64_t gguf_bytes(const NeededTensor& need) {
  return rows_of(need) * width_of(need) * (is_vector(need) ? 4 : 2);
}

// Returns everything before the data: magic, version, counts, metadata and tensor infos.
std::string gguf_head(const std::vector<NeededTensor>& tensors, const TensorNames& names,
                      const GgufMetadata& metadata) {
  constexpr std::uint32_t kVersion = 3;
  constexpr std::uint32_t kF32 = 0;
  constexpr std::uint32_t kBf16 = 30;
  std::string head = "GGUF";
  put(head, kVersion);
  put<std::uint64_t>(head, tensors.size());
  put(head, metadata.pairs());
  head += metadata.bytes();
  std::int64_t offset = 0;
  for (const NeededTensor& need : tensors) {
    put_string(head, tensor_name(names, need.role, need.layer));
    put<std::uint32_t>(head, is_vector(need) ? 1 : 2);
    put<std::uint64_t>(head, static_cast<std::uint64_t>(width_of(need)));
    if (!is_vector(need)) {
      put<std::uint64_t>(head, static_cast<std::uint64_t>(need.rows));
    }
    put(head, is_vector(need) ? kF32 : kBf16);
    put<std::uint64_t>(head, static_cast<std::uint64_t>(offset));
    offset = round_up(offset + gguf_bytes(need), kGgufAlignment);
  }
  head.resize(static_cast<std::size_t>(round_up(std::ssize(head), kGgufAlignment)));
  return head;
}

}  // namespace

Status write_safetensors(const Checkpoint& checkpoint, const TensorNames& names,
                         const std::filesystem::path& path, const WriteProgress& progress) {
  const std::vector<NeededTensor> tensors = needed_tensors(checkpoint.spec());
  std::vector<PlannedTensor> plan;
  std::int64_t total = 0;
  for (const NeededTensor& need : tensors) {
    std::vector<std::int64_t> shape = {need.rows};
    if (need.columns != 0) {
      shape.push_back(need.columns);
    }
    plan.push_back({tensor_name(names, need.role, need.layer), "BF16", std::move(shape)});
    total += plan.back().bytes();
  }
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(path, plan);
  if (!writer) {
    return writer.error();
  }
  std::int64_t done = 0;
  const WriteBytes write = [&](std::span<const std::byte> bytes) {
    done += std::ssize(bytes);
    progress(done, total);
    return writer->write(bytes);
  };
  for (const NeededTensor& need : tensors) {
    if (Status written = stream_tensor(checkpoint, need, false, write); !written) {
      return written;
    }
  }
  return writer->finish();
}

void GgufMetadata::header(std::string_view key, std::uint32_t type) {
  put_string(bytes_, key);
  put(bytes_, type);
  ++pairs_;
}

void GgufMetadata::add(std::string_view key, std::uint32_t value) {
  header(key, 4);
  put(bytes_, value);
}

void GgufMetadata::add(std::string_view key, float value) {
  header(key, 6);
  put(bytes_, value);
}

void GgufMetadata::add(std::string_view key, bool value) {
  header(key, 7);
  put(bytes_, static_cast<std::uint8_t>(value));
}

void GgufMetadata::add(std::string_view key, std::string_view value) {
  header(key, 8);
  put_string(bytes_, value);
}

void GgufMetadata::add(std::string_view key, const std::vector<std::string>& values) {
  header(key, 9);
  put<std::uint32_t>(bytes_, 8);
  put<std::uint64_t>(bytes_, values.size());
  for (const std::string& value : values) {
    put_string(bytes_, value);
  }
}

void GgufMetadata::add(std::string_view key, const std::vector<std::int32_t>& values) {
  header(key, 9);
  put<std::uint32_t>(bytes_, 5);
  put<std::uint64_t>(bytes_, values.size());
  for (const std::int32_t value : values) {
    put(bytes_, value);
  }
}

Status write_gguf(const Checkpoint& checkpoint, const TensorNames& names,
                  const GgufMetadata& metadata, const std::filesystem::path& path,
                  const WriteProgress& progress) {
  const std::vector<NeededTensor> tensors = needed_tensors(checkpoint.spec());
  std::int64_t total = 0;
  for (const NeededTensor& need : tensors) {
    total += gguf_bytes(need);
  }
  Result<OutputFile> file = OutputFile::create(path);
  if (!file) {
    return file.error();
  }
  const std::string head = gguf_head(tensors, names, metadata);
  Status written = file->write(std::as_bytes(std::span(head)));
  std::int64_t done = 0;
  const WriteBytes write = [&](std::span<const std::byte> bytes) {
    done += std::ssize(bytes);
    progress(done, total);
    return file->write(bytes);
  };
  for (std::size_t i = 0; written && i < tensors.size(); ++i) {
    written = stream_tensor(checkpoint, tensors[i], is_vector(tensors[i]), write);
    const std::int64_t bytes = gguf_bytes(tensors[i]);
    const std::vector<std::byte> padding(
        static_cast<std::size_t>(round_up(bytes, kGgufAlignment) - bytes));
    if (written) {
      written = file->write(padding);
    }
  }
  return written ? file->finish() : written;
}

}  // namespace protean
