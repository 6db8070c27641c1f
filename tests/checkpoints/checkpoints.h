#pragma once

// Writes tiny checkpoints with random weights for tests, in the formats that users have. Uses only
// names and layouts of the formats, no code of the reader under test.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "contract/model_spec.h"

namespace protean {

// A temporary directory that is removed with the object.
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
  ModelSpec spec;    // as a Hugging Face directory says it
  friend std::ostream& operator<<(std::ostream& out, const NamedSpec& model) {
    return out << model.name;
  }
};

// Returns specs of a few thousand weights that have every architecture row and every feature of a
// ModelSpec at least once.
std::vector<NamedSpec> architecture_specs();

// Returns true if llama.cpp converts models of the family to GGUF.
bool has_gguf(const ModelSpec& spec);

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
  // The type with more bits in llama.cpp's mixes (Q6_K in Q4_K_M): of values and ffn_down in the
  // first and last eighth of the layers and every third layer between, and of the LM head.
  std::optional<GgufType> more;
  // Embeds a SentencePiece vocabulary of spec.vocab pieces, at least 259: <unk>, <s>, </s>, the 256
  // bytes, then letters and words.
  bool vocabulary = false;
};

// Writes config.json, generation_config.json and weights into an existing directory. Norms are
// about 1; matrices are scaled so that activations keep their size. Fails the calling test on
// errors.
void write_hf_checkpoint(const std::filesystem::path& directory, const ModelSpec& spec,
                         const HfCheckpointOptions& options = {});

// Writes the model that write_hf_checkpoint() writes for the same seed, in GGUF's order of rows and
// with another type. With kF32 in both, the files hold the same numbers. Quantised types are random
// valid blocks of about the same size. Norms, biases and tensors whose rows are not whole blocks
// stay f32. Llama 3 scaling becomes rope_freqs.weight, as converters write it.
void write_gguf_checkpoint(const std::filesystem::path& file, const ModelSpec& spec,
                           const GgufCheckpointOptions& options = {});

}  // namespace protean
