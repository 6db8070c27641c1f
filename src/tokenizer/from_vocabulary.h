#pragma once

#include <memory>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// make_tokenizer() for a vocabulary whose normalizer also squeezes runs of spaces into one and
// drops them at both ends (SentencePiece's remove_extra_whitespaces, which GGUF has no word for).
Result<std::unique_ptr<Tokenizer>> make_squeezing_tokenizer(Vocabulary vocabulary);

}  // namespace protean
