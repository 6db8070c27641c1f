#pragma once

#include <string_view>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// Reads a SentencePiece tokenizer.model (sentencepiece_model.proto). Models of other types than
// BPE and Unigram are refused by name. Error messages do not name the file.
Result<Vocabulary> read_sentencepiece_model(std::string_view bytes);

}  // namespace protean
