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
  std::int64_t output_tokens = 0;  // 0 if not stated
};
// Parses JSON lines of {"prompt": "...", "output_tokens": 20}; output_tokens is optional.
Result<std::vector<DatasetPrompt>> parse_dataset(std::string_view lines, std::string_view name);

// The source of prompts: words of a text, whole prompts, or random token ids.
struct PromptSource {
  std::string text;                       // --prompt-file; if empty, random common words are used
  std::vector<DatasetPrompt> dataset;     // whole prompts, used in this order
  std::optional<TokenIdRange> token_ids;  // if set, prompts are token ids, so their length is exact
};

// Writes the prompts of planned requests. Equal requests get equal prompts, and prefix blocks with
// equal ids get equal words in all requests. All other words are drawn anew.
class PromptWriter {
 public:
  PromptWriter(PromptSource source, std::uint64_t seed);
  PromptWriter(const PromptWriter&) = delete;  // words_ points into source_
  PromptWriter& operator=(const PromptWriter&) = delete;

  void set_calibration(const TokenCalibration& calibration) { calibration_ = calibration; }

  std::string text(const PlannedRequest& planned) const;
  std::vector<std::int64_t> token_ids(const PlannedRequest& planned) const;
  // Returns the text of a probe. Probe words are those of the source's text in their order, or the
  // built-in list's, spread so that 128 words are typical of it.
  std::string probe_text(const ProbeWords& words) const;

  bool writes_token_ids() const { return source_.token_ids.has_value(); }
  bool has_dataset() const { return !source_.dataset.empty(); }
  // Returns the dataset's prompt for this request. Null without a dataset and for a warm-up request
  // (with a negative index), whose prompt must not be one of the run's.
  const DatasetPrompt* dataset_prompt(const PlannedRequest& planned) const;

 private:
  void append_words(std::int64_t count, std::uint64_t stream, std::string& text) const;

  PromptSource source_;
  std::uint64_t seed_;
  std::vector<std::string_view>
      words_;  // words of source_.text; if empty, the built-in list is used
  TokenCalibration calibration_;
};

}  // namespace protean::loadtest
