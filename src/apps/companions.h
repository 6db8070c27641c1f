#pragma once

#include <filesystem>

#include "base/result.h"
#include "replica/model_files.h"

namespace protean {

// Writes what a copy of a model needs besides config.json and its weights: the other files of a
// directory, or the tokenizer and chat template of a .gguf file as files of a Hugging Face
// directory.
Status write_companions(const ModelFiles& files, const std::filesystem::path& source,
                        const std::filesystem::path& target);

}  // namespace protean
