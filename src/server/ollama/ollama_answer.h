#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/answer/answer_writer.h"

namespace protean {

enum class OllamaCall : std::uint8_t { kChat, kGenerate };

// Writes answers of Ollama's API: one JSON object for each step and a last one with token counts
// and times, a line each (NDJSON), or one object if the answer is not streamed. A tool call is
// written once its arguments are complete.
std::unique_ptr<AnswerWriter> make_ollama_writer(const AnswerIdentity& identity, OllamaCall kind);

enum class OllamaEmbedding : std::uint8_t { kEmbed, kEmbeddings };
std::unique_ptr<AnswerWriter> make_ollama_embedding_writer(const AnswerIdentity& identity,
                                                           OllamaEmbedding kind);

// Returns a time as Ollama writes it: "2026-01-31T12:00:00Z".
std::string ollama_time(std::int64_t unix_time_s);

}  // namespace protean
