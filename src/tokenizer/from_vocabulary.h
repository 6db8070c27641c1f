#pragma once

#include <memory>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// make_tokenizer() for a vocabulary whose normalizer replaces runs of spaces by one and removes
// spaces at both ends (SentencePiece's remove_extra_whitespaces, which GGUF cannot express).
Result<std::unique_ptr<Tokenizer>> make_squeezing_tokenizer(Vocabulary vocabulary);

}  // namespace protean
