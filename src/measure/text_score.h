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

// How documents are read: in windows of `context` tokens that score `stride` new ones each.
struct ScoringOptions {
  int context = 0;
  int stride = 0;
};

struct TextScore {
  Likelihood likelihood;
  // Against a reference model:
  std::optional<Likelihood> reference;
  std::optional<Divergence> divergence;
};

// Scores all documents with `model`, batched through its engine; and with `reference` too, where
// that is not null, comparing the two row by row. Both must share the vocabulary.
Result<TextScore> score_text(LocalClient& model, LocalClient* reference,
                             std::span<const Document> documents, const ScoringOptions& options,
                             const CountProgress& progress);

}  // namespace protean
