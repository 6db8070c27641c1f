#pragma once

#include <boost/json/value.hpp>
#include <functional>
#include <string>

#include "server/answer/served_model.h"
#include "server/call/field.h"

namespace protean {

// A call that needs no engine. `run` returns the body of the reply; it may take long and may run on
// any thread.
struct TextCall {
  std::string model;  // empty: the model that is served
  std::function<Checked<std::string>(const ServedModel& model)> run;
};

using ParseText = Checked<TextCall> (*)(boost::json::value body);

// Reads POST /tokenize as vLLM has it (prompt or messages) and as llama-server has it (content).
// The answer has the fields of both; with_pieces makes tokens objects.
Checked<TextCall> read_tokenize_call(boost::json::value body);
// Reads POST /detokenize of both. Special tokens are shown.
Checked<TextCall> read_detokenize_call(boost::json::value body);
Fields tokenize_fields();
Fields detokenize_fields();

}  // namespace protean
