#include "measure/calibration_text.h"

#include <algorithm>
#include <span>

#include "measure/documents.h"

namespace protean {

Result<std::vector<std::vector<TokenId>>> read_windows(const std::string& path,
                                                       const Tokenizer& tokenizer,
                                                       const WindowOptions& options) {
  const auto documents = read_documents(path, "", tokenizer);
  if (!documents.ok()) {
    return documents.error();
  }
  std::vector<std::span<const TokenId>> windows;
  const auto length = static_cast<std::size_t>(options.length);
  for (const Document& document : *documents) {
    for (std::size_t at = 0; at < document.tokens.size(); at += length) {
      const std::size_t end = std::min(document.tokens.size(), at + length);
      // The rest of a longer document would be read without the words before it.
      if (at == 0 || end - at == length) {
        windows.emplace_back(std::span(document.tokens).subspan(at, end - at));
      }
    }
  }
  if (windows.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{} holds no text to calibrate by", path);
  }
  const std::size_t count = std::min(windows.size(), static_cast<std::size_t>(options.samples));
  std::vector<std::vector<TokenId>> sequences;
  for (std::size_t i = 0; i < count; ++i) {
    const std::span<const TokenId> window = windows[i * windows.size() / count];
    sequences.emplace_back(window.begin(), window.end());
  }
  return sequences;
}

}  // namespace protean
