#pragma once

#include <boost/json/object.hpp>
#include <memory>
#include <string>
#include <vector>

#include "server/answer/answer_writer.h"

namespace protean {

// Makes the writer of llama-server's answers to POST /completion and POST /infill. If `fields` is
// not empty, an answer that is not streamed has these fields only: "timings/prompt_n" names a field
// within another one.
std::unique_ptr<AnswerWriter> make_llama_writer(AnswerIdentity identity,
                                                std::vector<std::string> fields);

}  // namespace protean
