#pragma once

#include <cstdint>
#include <span>

namespace protean::loadtest {

// How many tokens the server's tokenizer makes of a prompt of words. Probe prompts measure it.
struct TokenCalibration {
  double tokens_per_word = 1;
  double overhead_tokens = 0;  // for the chat template and BOS
};

// A prompt that was sent to measure, and the tokens that the server's usage reported for it.
struct ProbePrompt {
  std::int64_t words = 0;
  std::int64_t tokens = 0;
};

// Returns the number of words of the next probe prompt, or 0 if `sent` suffices. No probe is much
// longer than `longest_tokens`, the longest prompt of the run: a server with a short context would
// refuse it.
std::int64_t next_probe_words(std::span<const ProbePrompt> sent, std::int64_t longest_tokens);

// Returns the line through the shortest and the longest probe, which are the first and the last.
TokenCalibration calibrate(std::span<const ProbePrompt> sent);

}  // namespace protean::loadtest
