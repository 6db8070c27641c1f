#include "measure/text_score.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace protean {
namespace {

constexpr std::int64_t kMostRowBytes =
    256 * kMiB;  // bound of the reference's rows that are kept for comparison

// By window: positions of scored tokens and their probabilities.
using OnScore = std::function<void(const Window&, int position, const TokenLogprobs&)>;

Request scoring_request(const Document& document, const Window& window, bool whole_rows) {
  Request request;
  request.prompt.assign(document.tokens.begin() + window.begin,
                        document.tokens.begin() + window.end);
  request.max_tokens = 0;
  request.logprobs = {.prompt = true, .whole_rows = whole_rows};
  return request;
}

// What of a prompt's scores counts in its window.
void take_scores(const PromptScored& scored, const Window& window, const OnScore& on_score) {
  int position = window.begin + scored.first_position;
  for (const TokenLogprobs& logprobs : scored.logprobs) {
    if (position >= window.first_scored) {
      on_score(window, position, logprobs);
    }
    ++position;
  }
}

Status score_windows(LocalClient& client, std::span<const Document> documents,
                     std::span<const Window> windows, bool whole_rows, const OnScore& on_score) {
  std::unordered_map<RequestId, const Window*> outstanding;
  auto next = windows.begin();
  while (next != windows.end() || !outstanding.empty()) {
    for (; next != windows.end() && outstanding.size() < kMostOutstanding; ++next) {
      outstanding[client.submit(scoring_request(documents[next->document], *next, whole_rows))] =
          &*next;
    }
    for (const OutputBatch& batch : client.take()) {
      for (const Output& output : batch.outputs) {
        if (const auto* scored = std::get_if<PromptScored>(&output)) {
          take_scores(*scored, *outstanding.at(scored->request), on_score);
        } else if (const auto* refused = std::get_if<Refused>(&output)) {
          return refused->error;
        } else if (const auto* finished = std::get_if<Finished>(&output)) {
          if (finished->reason == FinishReason::kFailed) {
            return make_error(ErrorCode::kInternal, "scoring failed: {}", finished->failure);
          }
          outstanding.erase(finished->request);
        }
      }
    }
  }
  return {};
}

// So many windows at a time that the reference's rows stay within bounds.
std::size_t group_size(const LocalClient& model, const ScoringOptions& options) {
  const std::int64_t window_bytes = std::int64_t{options.context} *
                                    model.files().checkpoint->spec().vocab *
                                    static_cast<std::int64_t>(sizeof(float));
  return static_cast<std::size_t>(std::clamp<std::int64_t>(
      kMostRowBytes / window_bytes, 1, static_cast<std::int64_t>(kMostOutstanding)));
}

Status compare_group(LocalClient& model, LocalClient& reference,
                     std::span<const Document> documents, std::span<const Window> group,
                     TextScore& score) {
  using Rows = std::unordered_map<int, std::vector<float>>;  // by position
  std::unordered_map<const Window*, Rows> rows;
  Status scored =
      score_windows(reference, documents, group, true,
                    [&](const Window& window, int position, const TokenLogprobs& logprobs) {
                      score.reference->add(logprobs.logprob);
                      rows[&window][position] = logprobs.row;
                    });
  if (!scored.ok()) {
    return scored;
  }
  return score_windows(model, documents, group, true,
                       [&](const Window& window, int position, const TokenLogprobs& logprobs) {
                         score.likelihood.add(logprobs.logprob);
                         const TokenId token =
                             documents[window.document].tokens[static_cast<std::size_t>(position)];
                         score.divergence->add(rows[&window][position], logprobs.row, token);
                       });
}

}  // namespace

Result<TextScore> score_text(LocalClient& model, LocalClient* reference,
                             std::span<const Document> documents, const ScoringOptions& options,
                             const CountProgress& progress) {
  TextScore score;
  std::vector<Window> windows;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const int count = static_cast<int>(documents[i].tokens.size());
    const auto cut = cut_windows(i, count, options.context, options.stride);
    windows.insert(windows.end(), cut.begin(), cut.end());
    score.likelihood.add_bytes(documents[i].scored_bytes);
    tokens += count - 1;
  }
  if (reference == nullptr) {
    Status scored = score_windows(model, documents, windows, false,
                                  [&](const Window&, int, const TokenLogprobs& logprobs) {
                                    score.likelihood.add(logprobs.logprob);
                                    progress(score.likelihood.tokens(), tokens);
                                  });
    return scored.ok() ? Result<TextScore>(std::move(score)) : scored.error();
  }
  score.reference.emplace().add_bytes(score.likelihood.bytes());
  score.divergence.emplace();
  const std::size_t group = group_size(model, options);
  for (std::size_t first = 0; first < windows.size(); first += group) {
    const auto some = std::span(windows).subspan(first, std::min(group, windows.size() - first));
    if (Status compared = compare_group(model, *reference, documents, some, score);
        !compared.ok()) {
      return compared.error();
    }
    progress(score.likelihood.tokens(), tokens);
  }
  return score;
}

}  // namespace protean
