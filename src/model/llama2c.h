#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace protean {

// Describes a llama2.c checkpoint, such as "llama2.c checkpoint (5 layers, hidden 64, ...)".
// Nothing if the file is something else. Such files often end in .bin like PyTorch's.
std::optional<std::string> describe_llama2c(const std::filesystem::path& path);

}  // namespace protean
