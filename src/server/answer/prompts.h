#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer/served_model.h"

namespace protean {

struct Prompt {
  std::vector<TokenId> tokens;
  std::string text;  // the prompt's text, if the answer repeats it
};

// Turns what a call asks about into tokens: one prompt of a chat or of an infill, one for each
// prompt of a completion.
Checked<std::vector<Prompt>> make_prompts(const GenerationCall& call, const ServedModel& model);

// Returns the prompt of a chat, not truncated.
Checked<std::vector<TokenId>> chat_tokens(const GenerationCall& call, const ServedModel& model);

// Returns the bytes of text that a call asks about.
std::int64_t input_bytes(const GenerationCall& call);

// Returns what the dialect calls the field that holds the input.
std::string_view input_name(const GenerationCall& call);

}  // namespace protean
