#include "measure/calibration_text.h"

#include <algorithm>
#include <span>

#include "measure/documents.h"

namespace protean {
namespace {

// Fewer tokens do not show which inputs of a layer are large.
constexpr std::size_t kLeastCalibrationTokens = 128;

}  // namespace

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
      // The remainder of a longer document is left out: it lacks the text before it.
      if (at == 0 || end - at == length) {
        windows.emplace_back(std::span(document.tokens).subspan(at, end - at));
      }
    }
  }
  std::size_t tokens = 0;
  for (const std::span<const TokenId> window : windows) {
    tokens += window.size();
  }
  if (tokens < kLeastCalibrationTokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} holds {} tokens, too few to calibrate with: give at least {}, better "
                      "{} windows of {} (--samples, --sequence-length)",
                      path, tokens, kLeastCalibrationTokens, options.samples, options.length);
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
