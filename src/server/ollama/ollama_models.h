#pragma once

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <string>

#include "server/answer/served_model.h"
#include "server/openai/text_endpoints.h"

namespace protean {

// Version of Ollama's API that is followed; clients compare it with what they need.
inline constexpr const char* kOllamaApiVersion = "0.12.0";

// Return a model's entries in the lists of Ollama's GET /api/tags, one for each of its names, and
// GET /api/ps.
boost::json::array ollama_tags(const ServedModel& model, std::int64_t created_s);
// `expires_s` is the Unix time at which the model sleeps unless it is used; nothing: it never does.
boost::json::array ollama_running(const ServedModel& model, std::optional<std::int64_t> expires_s);

// Reads POST /api/show, whose answer describes the model.
Checked<TextCall> read_ollama_show(boost::json::value body);

// Reads POST /api/pull. Pulling a model of the server succeeds at once, others are 404.
Checked<TextCall> read_ollama_pull(boost::json::value body);

// Returns the fields of both bodies.
Fields ollama_named_fields();

}  // namespace protean
