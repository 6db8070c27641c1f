#pragma once

#include <vector>

#include "server/answer/served_model.h"

namespace protean {

// Returns the prompt that asks a model to write what stands between a prefix and a suffix. If all
// does not fit into the context together with the answer, whole files are left out, the first ones
// first, then the prefix loses its beginning and the suffix its end. Fails if the model has no
// tokens for it.
Checked<std::vector<TokenId>> infill_prompt(const InfillInput& input, const GenerationCall& call,
                                            const ServedModel& model);

// Returns the tokens that end an infilled text in addition to those that end each answer.
std::vector<TokenId> infill_end_tokens(const InfillTokens& tokens);

}  // namespace protean
