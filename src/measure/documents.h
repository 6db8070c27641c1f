#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// A text that is scored independently of others.
struct Document {
  std::string text;
  std::vector<TokenId> tokens;    // with BOS if the tokenizer has one
  std::int64_t scored_bytes = 0;  // bytes of the text, less those of an unscored first token
};

// Reads documents. A .jsonl file holds one a line, in "text"; any other file is one document, or
// several with `separator` between them if that is not empty. Documents of fewer than two tokens
// are left out: there is nothing to score.
Result<std::vector<Document>> read_documents(const std::string& path, const std::string& separator,
                                             const Tokenizer& tokenizer);

// A prompt to continue and the true continuation, empty if not known. A .jsonl file holds one a
// line ("prompt", "reference"); in any other file each line is a prompt.
struct Continuation {
  std::string prompt;
  std::string reference;
};
Result<std::vector<Continuation>> read_prompts(const std::string& path);

}  // namespace protean
