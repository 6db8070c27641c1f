#pragma once

#include "base/result.h"
#include "chat/chat_template.h"
#include "model/gguf.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// tokenizer.ggml.* metadata as a format-free vocabulary. Here because the tokenizer may not know
// model files, nor the model text.
Result<Vocabulary> gguf_vocabulary(const GgufFile& file);

// tokenizer.chat_template and the texts of BOS and EOS.
Result<ChatFiles> gguf_chat_files(const GgufFile& file, const Tokenizer& tokenizer);

}  // namespace protean
