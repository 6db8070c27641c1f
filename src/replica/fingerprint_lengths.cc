#include "replica/fingerprint_lengths.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cost/step_work.h"

namespace protean {
namespace {

constexpr int kChunk = 256;
constexpr int kPrompt = 2 * kChunk;
constexpr int kDecode = 2048;
// KV is read in tiles. With less than two of them, KV cannot be told from sequences.
constexpr int kLeastDecode = 2 * kKvTileTokens;
constexpr std::int64_t kPositions = 16384;

// Returns the positions that layers see of a sequence that decodes, in the mean: all of them may
// have a window.
int seen_of(const ModelSpec& timed, int tokens) {
  const StepPlan plan = plan_of(decode_sizes(1, tokens - 1), timed.vocab, kKvTileTokens);
  return static_cast<int>(work_of(plan, timed).kv_least_tokens);
}

}  // namespace

FingerprintLengths fingerprint_lengths(const ModelSpec& timed, std::int64_t layers_bytes,
                                       std::int64_t kv_position_bytes) {
  const int most =
      timed.learned_positions ? timed.max_context : std::max(timed.max_context, kLeastDecode);
  const int sequence = std::clamp(most, 2, kDecode);
  return {
      .sequence = sequence,
      .prompt = std::min(sequence, kPrompt),
      .chunk = std::min(sequence, kChunk),
      .decode = std::clamp(seen_of(timed, sequence), std::min(kLeastDecode, sequence), sequence),
      .positions = std::min(kPositions, layers_bytes / kv_position_bytes)};
}

std::vector<StepSizes> attending_steps(const FingerprintLengths& lengths) {
  std::set<std::pair<int, int>> decodes = {{8, std::min(48, lengths.decode - 1)},
                                           {16, lengths.prompt / 2}};
  for (const std::int64_t part : {8, 2, 1}) {
    const auto sequences = static_cast<int>(lengths.positions / part / lengths.decode);
    decodes.emplace(std::clamp(sequences, 1, lengths.chunk), lengths.decode - 1);
  }
  std::vector<StepSizes> steps;
  for (const auto& [sequences, context] : decodes) {
    steps.push_back(decode_sizes(sequences, context));
    steps.back().sampled = false;
  }
  for (const int tokens : {24, 64}) {
    if (tokens < lengths.prompt) {
      steps.push_back(inner_chunk(tokens, lengths.prompt - tokens));
    }
  }
  steps.push_back(inner_chunks(8, 8));
  if (lengths.prompt > lengths.chunk) {
    steps.push_back(inner_chunk(lengths.prompt));  // more than a pass over the weights
  }
  return steps;
}

}  // namespace protean
