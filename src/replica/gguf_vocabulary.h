#pragma once

#include "base/result.h"
#include "chat/chat_template.h"
#include "model/gguf.h"
#include "tokenizer/infill_tokens.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// Converts tokenizer.ggml.* metadata to a vocabulary. The tokenizer module knows no model files,
// and the model module no text.
Result<Vocabulary> gguf_vocabulary(const GgufFile& file);

// Reads tokenizer.chat_template and the texts of BOS and EOS.
Result<ChatFiles> gguf_chat_files(const GgufFile& file, const Tokenizer& tokenizer);

// Returns the tokens that the file names for infilling; without them, those of known families.
Result<InfillTokens> gguf_infill_tokens(const GgufFile& file, const Tokenizer& tokenizer);

}  // namespace protean
