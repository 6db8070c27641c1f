#pragma once

#include <cstdint>
#include <span>

namespace protean::loadtest {

// How many tokens the server's tokenizer makes of a prompt of words. Probe prompts measure it.
struct TokenCalibration {
  double tokens_per_word = 1;
  double overhead_tokens = 0;  // tokens of the chat template and BOS
};

// A prompt that measures: `count` consecutive probe words from the `first` on, `times` times.
struct ProbeWords {
  std::int64_t first = 0;
  std::int64_t count = 0;
  int times = 1;
};

// A probe that was sent, and the tokens that the server's usage reported for it.
struct ProbePrompt {
  ProbeWords words;
  std::int64_t tokens = 0;
};

// Returns the next probe, or one without words if `sent` suffices. The first two have the same
// words, once and twice, which tells overhead from words. Up to four others have new words, until
// 128 were seen. No probe is much longer than `longest_tokens`, the longest prompt of the run: a
// server with a short context would refuse it.
ProbeWords next_probe(std::span<const ProbePrompt> sent, std::int64_t longest_tokens);

TokenCalibration calibrate(std::span<const ProbePrompt> sent);

}  // namespace protean::loadtest
