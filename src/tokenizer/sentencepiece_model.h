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

// Reads a SentencePiece tokenizer.model (sentencepiece_model.proto). Models of another type than
// BPE are refused by name. Error messages do not name the file.
Result<SentencePieceModel> read_sentencepiece_model(std::string_view bytes);

}  // namespace protean
