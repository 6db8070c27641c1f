#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace protean {

struct SentencePieceModel {
  Vocabulary vocabulary;
  bool squeezes_spaces = false;
};

// Reads the bytes of a SentencePiece tokenizer.model (its sentencepiece_model.proto). Only models
// of type BPE: the format holds others, which are refused by name. Messages name no file.
Result<SentencePieceModel> read_sentencepiece_model(std::string_view bytes);

}  // namespace protean
