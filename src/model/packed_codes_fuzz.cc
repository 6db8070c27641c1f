// Any bytes are either refused as the weights of a quantised model or can be read in full. The
// first byte chooses the packing.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "model/checkpoint_tensors.h"

namespace protean {
namespace {

// Returns one layer of the smallest sizes that all packings allow.
HfConfig small_config(std::uint8_t choice) {
  HfConfig config;
  config.row = &architectures().front();
  config.spec = {.architecture = "llama",
                 .layers = 1,
                 .hidden = 32,
                 .ffn = 64,
                 .vocab = 4,
                 .max_context = 16,
                 .tied_embeddings = true,
                 .attention = {.heads = 2, .kv_heads = 2, .head_dim = 16}};
  constexpr int kBits[] = {2, 3, 4, 8};
  constexpr std::int64_t kGroups[] = {0, 1, 7, 32};
  if (choice >= 192) {  // row after row
    constexpr CodePacking kRowPackings[] = {CodePacking::kRows, CodePacking::kSigned,
                                            CodePacking::kFloat8};
    const CodePacking packing = kRowPackings[choice % 3];
    config.quantization = {.packing = packing,
                           .bits = packing == CodePacking::kRows && choice % 2 == 0 ? 4 : 8,
                           .group = kGroups[choice / 8 % 4],
                           .row_block = choice / 4 % 2 == 0 ? 1 : 5};
    return config;
  }
  const bool awq = choice % 2 == 1;
  config.quantization = {.packing = awq ? CodePacking::kAwq : CodePacking::kGptq,
                         .bits = awq ? 4 : kBits[choice / 2 % 4],
                         .group = kGroups[choice / 8 % 4],
                         .zeros_less_one = choice / 32 % 2 == 1};
  return config;
}

void read_everything(const Checkpoint& checkpoint) {
  std::vector<float> rows;
  for (const NeededTensor& need : needed_tensors(checkpoint.spec())) {
    const std::int64_t count = need.columns == 0 ? 1 : need.rows;
    rows.resize(static_cast<std::size_t>(need.rows * std::max<std::int64_t>(need.columns, 1)));
    checkpoint.read_rows(need.role, need.layer, 0, count, rows.data());
    if (const auto format = checkpoint.stored_format(need.role, need.layer)) {
      const QuantizedMatrix stored =
          checkpoint.read_stored_rows(need.role, need.layer, 0, need.rows);
      check(std::all_of(stored.codes.begin(), stored.codes.end(),
                        [&](std::uint8_t code) { return code < format->codes(); }),
            "codes have no more bits than they say");
    }
    checkpoint.release(need.role, need.layer);
  }
}

}  // namespace
}  // namespace protean

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace protean;
  if (size == 0) {
    return 0;
  }
  auto file = SafetensorsFile::parse(std::as_bytes(std::span(data + 1, size - 1)), "fuzz");
  if (!file) {
    return 0;
  }
  const auto checkpoint = open_hf_checkpoint(small_config(data[0]), std::move(*file));
  if (checkpoint.ok()) {
    read_everything(**checkpoint);
  } else {
    check(checkpoint.error().message.find('\n') == std::string::npos, "errors are one line");
  }
  return 0;
}
