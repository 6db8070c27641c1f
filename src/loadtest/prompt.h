#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "loadtest/token_calibration.h"
#include "loadtest/workload.h"

namespace protean::loadtest {

struct TokenIdRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
Result<TokenIdRange> parse_token_ids(std::string_view text);  // "300:2000"

struct DatasetPrompt {
  std::string prompt;
  std::int64_t output_tokens = 0;  // 0: not stated
};
// JSON lines: {"prompt": "...", "output_tokens": 20}, the second of them optional.
Result<std::vector<DatasetPrompt>> parse_dataset(std::string_view lines, std::string_view name);

// Where the words of prompts come from.
struct PromptSource {
  std::string text;                       // of --prompt-file; empty: common words at random
  std::vector<DatasetPrompt> dataset;     // whole prompts, in their order; lengths are theirs
  std::optional<TokenIdRange> token_ids;  // prompts are ids instead of text: their length is exact
};

// The prompt of a planned request. Equal requests have equal prompts; prefix blocks of equal ids
// have equal words, whatever request they are in; all others differ.
class PromptWriter {
 public:
  PromptWriter(PromptSource source, std::uint64_t seed);
  PromptWriter(const PromptWriter&) = delete;  // it holds views into its own text
  PromptWriter& operator=(const PromptWriter&) = delete;

  void set_calibration(const TokenCalibration& calibration) { calibration_ = calibration; }

  std::string text(const PlannedRequest& planned) const;
  std::vector<std::int64_t> token_ids(const PlannedRequest& planned) const;
  // Words of the source in its order, to calibrate with: of the built-in ones 128 are all.
  std::string probe_words(std::int64_t count) const;

  bool writes_token_ids() const { return source_.token_ids.has_value(); }
  bool has_dataset() const { return !source_.dataset.empty(); }
  // The dataset's line for this request; null without a dataset, and for a negative index, which
  // is that of a warm-up: it has words of its own.
  const DatasetPrompt* dataset_prompt(const PlannedRequest& planned) const;

 private:
  void append_words(std::int64_t count, std::uint64_t stream, std::string& text) const;

  PromptSource source_;
  std::uint64_t seed_;
  std::vector<std::string_view> words_;  // into source_.text; empty: the built-in list
  TokenCalibration calibration_;
};

}  // namespace protean::loadtest
