#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace protean {

struct LlamaBenchOptions {
  std::string program;  // empty: no peer
  std::string model;    // .gguf
};

// One run of llama.cpp's llama-bench, which times a prompt or a sequence that decodes.
struct LlamaBenchRun {
  std::string model;  // as it calls it
  double tokens_per_s = 0;
};

// What `llama-bench -o json` prints for one test.
Result<LlamaBenchRun> parse_llama_bench(std::string_view text);

// Runs the program and waits for it.
class LlamaBench {
 public:
  // Nothing where no program is named.
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
