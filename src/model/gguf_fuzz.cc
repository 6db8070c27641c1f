// Any bytes are either refused as a GGUF file or can be read in full: metadata, spec and weights.

#include <cstdint>
#include <vector>

#include "model/checkpoint_tensors.h"
#include "model/gguf.h"

namespace protean {
namespace {

void read_metadata(const GgufFile& file) {
  for (const char* key :
       {"a", "general.architecture", "general.alignment", "tokenizer.ggml.tokens",
        "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.eos_token_id"}) {
    (void)file.find_integer(key);
    (void)file.find_number(key);
    (void)file.find_bool(key);
    (void)file.find_string(key);
    (void)file.strings(key);
    (void)file.floats(key);
    (void)file.integers(key);
  }
}

void read_weights(const Checkpoint& checkpoint) {
  std::vector<float> row;
  for (const NeededTensor& need : needed_tensors(checkpoint.spec())) {
    const std::int64_t rows = need.columns == 0 ? 1 : need.rows;
    row.resize(static_cast<std::size_t>(need.columns == 0 ? need.rows : need.columns));
    checkpoint.read_rows(need.role, need.layer, 0, 1, row.data());
    checkpoint.read_rows(need.role, need.layer, rows - 1, 1, row.data());
    if (checkpoint.stored_format(need.role, need.layer)) {
      (void)checkpoint.read_stored_rows(need.role, need.layer, rows - 1, 1);
    }
  }
}

}  // namespace
}  // namespace protean

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace protean;
  auto file = GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!file) {
    return 0;
  }
  read_metadata(*file);
  const auto checkpoint = open_gguf_checkpoint(std::move(*file));
  if (checkpoint.ok()) {
    read_weights(**checkpoint);
  }
  return 0;
}
