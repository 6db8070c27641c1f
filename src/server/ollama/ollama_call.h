#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "server/answer/answer_writer.h"
#include "server/call/field.h"

namespace protean {

// Read the bodies of Ollama's POST /api/chat and POST /api/generate, which stream unless "stream"
// is false. Options that change the answer and are not supported are refused by name; options about
// where and in how much memory the model runs have no effect, since the server decides that.
Checked<DialectCall> read_ollama_chat(boost::json::value body);
Checked<DialectCall> read_ollama_generate(boost::json::value body);

// Read the bodies of POST /api/embed and of the older POST /api/embeddings.
Checked<DialectCall> read_ollama_embed(boost::json::value body);
Checked<DialectCall> read_ollama_embeddings(boost::json::value body);

Fields ollama_chat_fields();
Fields ollama_generate_fields();
Fields ollama_embed_fields();
Fields ollama_embeddings_fields();

// A call that only loads a model, or unloads it if it is to be kept for no time.
struct OllamaLoad {
  std::string model;                     // empty: the model that is served
  std::string answer;                    // that it gets at once
  std::optional<TimeNs> keep_loaded_ns;  // nothing: as the server has it
};

// Reads a call without messages or prompt. Returns nothing for other bodies.
std::optional<Checked<OllamaLoad>> read_ollama_load(std::string_view text,
                                                    std::int64_t unix_time_s);

// Returns the model's name without ":latest", which Ollama adds to names that have no tag.
std::string without_latest(std::string name);

}  // namespace protean
