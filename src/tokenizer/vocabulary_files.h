#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// Returns the files of a Hugging Face directory that load_tokenizer() reads back as this
// vocabulary, by name: tokenizer_config.json, which also holds the chat template unless that is
// empty, and tokenizer.model (SentencePiece) or tokenizer.json (byte-level BPE).
Result<std::map<std::string, std::string>> vocabulary_files(const Vocabulary& vocabulary,
                                                            const std::string& chat_template);

}  // namespace protean
