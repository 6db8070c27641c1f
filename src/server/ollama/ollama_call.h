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

// Returns the answer to a call that only loads or unloads a model: one without messages or prompt.
// The model of a server is always loaded. Returns nothing for other bodies.
std::optional<std::string> ollama_load_answer(std::string_view text, std::int64_t unix_time_s);

// Returns the model's name without ":latest", which Ollama adds to names that have no tag.
std::string without_latest(std::string name);

}  // namespace protean
