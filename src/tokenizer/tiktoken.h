#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// Meta ships Llama 3's vocabulary as lines of "base64 rank", also under the name tokenizer.model.
bool looks_like_tiktoken(std::string_view bytes);

// Llama 3's special tokens are in none of its files: they are known, and follow the ranks. Files
// with another number of ranks are of other models and are refused.
Result<std::unique_ptr<Tokenizer>> read_llama3_tiktoken(std::string_view bytes);

}  // namespace protean
