#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "measure/documents.h"
#include "quality/divergence.h"
#include "quality/likelihood.h"
#include "quality/windows.h"
#include "replica/local_client.h"
#include "terminal/progress.h"

namespace protean {

// Documents are read in windows of `context` tokens, each of which scores `stride` new tokens.
struct ScoringOptions {
  int context = 0;
  int stride = 0;
};

struct TextScore {
  Likelihood likelihood;
  // If there is a reference model:
  std::optional<Likelihood> reference;
  std::optional<Divergence> divergence;
};

// Scores all documents with `model`, batched through its engine. If `reference` is not null, also
// compares the two models' predictions, token by token; they must share a vocabulary.
Result<TextScore> score_text(LocalClient& model, LocalClient* reference,
                             std::span<const Document> documents, const ScoringOptions& options,
                             const CountProgress& progress);

}  // namespace protean
