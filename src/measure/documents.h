#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// A text to be scored by itself.
struct Document {
  std::string text;
  std::vector<TokenId> tokens;    // with BOS where the tokenizer has one
  std::int64_t scored_bytes = 0;  // of the text, less the first token's where that is not scored
};

// A .jsonl file holds a document per line, in its "text"; another file is one document, or several
// where `separator` (not empty) stands between them. Documents of fewer than two tokens, which
// have nothing to score, are left out.
Result<std::vector<Document>> read_documents(const std::string& path, const std::string& separator,
                                             const Tokenizer& tokenizer);

// What to continue, and how the true text went on, where that is known: a line each of a .jsonl
// file ("prompt", "reference"), or a line each of another file (no reference).
struct Continuation {
  std::string prompt;
  std::string reference;
};
Result<std::vector<Continuation>> read_prompts(const std::string& path);

}  // namespace protean
