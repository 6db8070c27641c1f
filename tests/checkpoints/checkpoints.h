#pragma once

// For tests: tiny checkpoints with random weights, written to disk in the formats that users bring.
// Only names and layouts of the formats are used here, no code of the reader under test.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "contract/model_spec.h"

namespace protean {

// A directory of its own that goes away with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct NamedSpec {
  std::string name;  // a valid file name, for test parameters and folders
  ModelSpec spec;    // as a Hugging Face directory says it: pairing is kHalfSplit
  friend std::ostream& operator<<(std::ostream& out, const NamedSpec& model) {
    return out << model.name;
  }
};

// Every architecture row and every feature of a ModelSpec at least once, a few thousand weights
// each.
std::vector<NamedSpec> architecture_specs();

enum class SafetensorsType { kF32, kF16, kBf16 };
enum class GgufType { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_K, kQ6_K };

struct HfCheckpointOptions {
  std::uint64_t seed = 1;
  SafetensorsType type = SafetensorsType::kBf16;
  int shards = 1;  // more than one writes model.safetensors.index.json too
};

struct GgufCheckpointOptions {
  std::uint64_t seed = 1;
  GgufType type = GgufType::kF32;
  // What llama.cpp's mixes (Q4_K_M of Q4_K and Q6_K) give more bits: the values and ffn_down of the
  // first and the last eighth of the layers and of each third between, and the output table.
  std::optional<GgufType> more;
  // A SentencePiece vocabulary of spec.vocab pieces, at least 259: <unk>, <s>, </s>, the 256 bytes,
  // then letters and words.
  bool vocabulary = false;
};

// config.json, generation_config.json and weights into an existing directory. Norms are about 1,
// matrices scaled so that activations keep their size. Fails the calling test if it cannot write.
void write_hf_checkpoint(const std::filesystem::path& directory, const ModelSpec& spec,
                         const HfCheckpointOptions& options = {});

// The same model as write_hf_checkpoint writes from the same seed, in GGUF's order of rows and at
// another type: with kF32 on both sides the two files mean the same numbers. Quantised types are
// random valid blocks of about the same size; tensors whose rows are no whole blocks stay f32, and
// norms and biases always do. Llama 3 scaling becomes rope_freqs.weight, as converters do it.
void write_gguf_checkpoint(const std::filesystem::path& file, const ModelSpec& spec,
                           const GgufCheckpointOptions& options = {});

}  // namespace protean
