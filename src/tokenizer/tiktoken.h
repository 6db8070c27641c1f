#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// Recognises Llama 3's vocabulary: lines of "base64 rank", also in a file named tokenizer.model.
bool looks_like_tiktoken(std::string_view bytes);

// Reads such a file. Llama 3's special tokens are not in its files; they follow the ranks. A file
// with another number of ranks belongs to another model and is refused.
Result<std::unique_ptr<Tokenizer>> read_llama3_tiktoken(std::string_view bytes);

}  // namespace protean
