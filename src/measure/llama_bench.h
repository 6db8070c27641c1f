#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace protean {

struct LlamaBenchOptions {
  std::string program;  // empty: none
  std::string model;    // .gguf
};

// The result of one run of llama.cpp's llama-bench.
struct LlamaBenchRun {
  std::string model;  // by llama-bench's name for it
  double tokens_per_s = 0;
};

// Parses what `llama-bench -o json` prints for one test.
Result<LlamaBenchRun> parse_llama_bench(std::string_view text);

// Runs llama-bench and waits for it.
class LlamaBench {
 public:
  // Returns nothing if no program is named. Fails if the model does not exist.
  static Result<std::optional<LlamaBench>> create(const LlamaBenchOptions& options, int threads);

  Result<LlamaBenchRun> prefill(int tokens) const;
  Result<LlamaBenchRun> decode(int context) const;

 private:
  LlamaBench(LlamaBenchOptions options, int threads)
      : options_(std::move(options)), threads_(threads) {}
  Result<LlamaBenchRun> run(const std::vector<std::string>& test) const;

  LlamaBenchOptions options_;
  int threads_;
};

}  // namespace protean
