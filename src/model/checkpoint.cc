#include "model/checkpoint.h"

#include <system_error>
#include <utility>

#include "base/check.h"
#include "model/checkpoint_tensors.h"
#include "model/llama2c.h"

namespace protean {

std::string_view name_of(TensorRole role) {
  switch (role) {
    case TensorRole::kEmbedding:
      return "embedding matrix";
    case TensorRole::kFinalNorm:
      return "final norm";
    case TensorRole::kOutput:
      return "LM head";
    case TensorRole::kAttentionNorm:
      return "attention norm";
    case TensorRole::kQuery:
      return "query projection";
    case TensorRole::kKey:
      return "key projection";
    case TensorRole::kValue:
      return "value projection";
    case TensorRole::kAttentionOutput:
      return "attention output projection";
    case TensorRole::kQueryBias:
      return "query bias";
    case TensorRole::kKeyBias:
      return "key bias";
    case TensorRole::kValueBias:
      return "value bias";
    case TensorRole::kAttentionOutputBias:
      return "attention output bias";
    case TensorRole::kQueryNorm:
      return "query norm";
    case TensorRole::kKeyNorm:
      return "key norm";
    case TensorRole::kMlpNorm:
      return "MLP norm";
    case TensorRole::kGate:
      return "gate projection";
    case TensorRole::kUp:
      return "up projection";
    case TensorRole::kDown:
      return "down projection";
    case TensorRole::kFinalNormBias:
      return "bias of the final norm";
    case TensorRole::kOutputBias:
      return "bias of the LM head";
    case TensorRole::kPositions:
      return "position embeddings";
    case TensorRole::kAttentionNormBias:
      return "bias of the attention norm";
    case TensorRole::kAttentionPostNorm:
      return "norm after attention";
    case TensorRole::kMlpNormBias:
      return "bias of the MLP norm";
    case TensorRole::kGateBias:
      return "gate bias";
    case TensorRole::kUpBias:
      return "up bias";
    case TensorRole::kDownBias:
      return "down bias";
    case TensorRole::kMlpPostNorm:
      return "norm after the MLP";
  }
  return "tensor";
}

QuantizedMatrix Checkpoint::read_stored_rows(TensorRole, int, std::int64_t, std::int64_t) const {
  check(false, "only a matrix with a stored format is read as integers");
  return {};
}

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return make_error(ErrorCode::kNotFound,
                      "{} cannot be found: give a Hugging Face directory or a .gguf file ({})",
                      path.string(), error.message());
  }
  if (std::filesystem::is_directory(status)) {
    return open_hf_checkpoint(path);
  }
  if (!std::filesystem::is_regular_file(status)) {
    return make_error(ErrorCode::kInvalidArgument, "{} is not a regular file", path.string());
  }
  const std::string extension = path.extension().string();
  if (extension == ".safetensors" || extension == ".json") {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} is one file of a model: give the directory it is in", path.string());
  }
  if (const auto llama2c = describe_llama2c(path)) {
    return make_error(ErrorCode::kUnsupported,
                      "{} is a {}, a format that is not read: convert it to GGUF, as llama.cpp's "
                      "llama-convert-llama2c-to-ggml does",
                      path.string(), *llama2c);
  }
  if (extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt") {
    return make_error(ErrorCode::kUnsupported,
                      "{} is not read, as pickles can run code: convert it to safetensors or GGUF",
                      path.string());
  }
  Result<GgufFile> file = GgufFile::open(path);
  if (!file) {
    return file.error();
  }
  return open_gguf_checkpoint(std::move(*file));
}

}  // namespace protean
