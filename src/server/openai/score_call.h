#pragma once

#include <boost/json/value.hpp>

#include "server/answer/answer_writer.h"
#include "server/call/field.h"

namespace protean {

// Reads vLLM's POST /v1/score. The score of two texts is the cosine of their embeddings.
Checked<DialectCall> read_score_call(boost::json::value body);

// Reads POST /v1/rerank as Jina, Cohere and vLLM have it. The answer has the documents in the order
// of their scores with the query.
Checked<DialectCall> read_rerank_call(boost::json::value body);

Fields score_fields();
Fields rerank_fields();

}  // namespace protean
