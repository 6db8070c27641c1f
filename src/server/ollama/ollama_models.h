#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <string>

#include "server/answer/served_model.h"
#include "server/openai/text_endpoints.h"

namespace protean {

// Version of Ollama's API that is followed; clients compare it with what they need.
inline constexpr const char* kOllamaApiVersion = "0.12.0";

// Return the bodies of Ollama's GET /api/tags and GET /api/ps: the models that there are and that
// run, here the served one under each of its names.
std::string ollama_tags(const ServedModel& model, std::int64_t created_s);
std::string ollama_running(const ServedModel& model);

// Reads POST /api/show, whose answer describes the model.
Checked<TextCall> read_ollama_show(boost::json::value body);

// Reads POST /api/pull. A server has one model: pulling that one succeeds at once, others are 404.
Checked<TextCall> read_ollama_pull(boost::json::value body);

}  // namespace protean
