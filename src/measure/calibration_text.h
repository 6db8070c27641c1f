#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace protean {

struct WindowOptions {
  int samples = 128;  // windows, if there are so many
  int length = 512;   // tokens of a window
};

// Windows of equal length, evenly over all of a text; a document shorter than that is one too. A
// .jsonl file holds a document a line.
Result<std::vector<std::vector<TokenId>>> read_windows(const std::string& path,
                                                       const Tokenizer& tokenizer,
                                                       const WindowOptions& options);

}  // namespace protean
