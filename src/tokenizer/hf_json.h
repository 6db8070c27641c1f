#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/companions.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// Reads a whole tokenizer.json from memory. `name` is for error messages.
Result<std::unique_ptr<Tokenizer>> parse_tokenizer_json(std::string_view text, std::string name,
                                                        const Companions& companions);

// Returns the tokens of {"token": id, ...} by id; missing ids are empty. Complains about ids that
// occur twice, are negative, or are far beyond the number of tokens.
std::vector<std::string> read_token_ids(const Fields& vocabulary);

}  // namespace protean
