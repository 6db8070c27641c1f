#pragma once

#include <boost/json/value.hpp>
#include <functional>
#include <string>

#include "server/answer/served_model.h"

namespace protean {

// What a call asks for that needs no engine. `run` may take long and runs on any thread, with the
// model it is given; it gives the body of the reply.
struct TextCall {
  std::string model;  // empty: whichever is served
  std::function<Checked<std::string>(const ServedModel& model)> run;
};

using ParseText = Checked<TextCall> (*)(boost::json::value body);

// POST /tokenize as vLLM has it (prompt or messages) and as llama-server has it (content). The
// answer is that of both, but that with_pieces makes tokens objects.
Checked<TextCall> read_tokenize_call(boost::json::value body);
// POST /detokenize of both. Special tokens are shown.
Checked<TextCall> read_detokenize_call(boost::json::value body);

}  // namespace protean
