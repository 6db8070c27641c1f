#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace protean {

struct WindowOptions {
  int samples = 128;  // the most windows
  int length = 512;   // tokens in a window
};

// Reads windows of equal length, spread evenly over a text; a shorter document is one window. A
// .jsonl file holds one document a line. Fails if there are too few tokens to calibrate with.
Result<std::vector<std::vector<TokenId>>> read_windows(const std::string& path,
                                                       const Tokenizer& tokenizer,
                                                       const WindowOptions& options);

}  // namespace protean
