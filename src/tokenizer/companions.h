#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// The settings in the small files next to a vocabulary: tokenizer_config.json,
// special_tokens_map.json and added_tokens.json. Earlier files take precedence. All may be missing.
struct Companions {
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::string tokenizer_class;    // without "Fast" at its end
  std::vector<AddedToken> added;  // by ascending id
};

Result<Companions> read_companions(const std::filesystem::path& directory);

// For vocabulary files without added tokens and BOS.
Status apply_companions(const Companions& companions, Vocabulary& vocabulary);
// For a tokenizer.json, which takes precedence. The companions add what it does not state.
void apply_companions(const Companions& companions, bool has_frame, Pipeline& pipeline);

}  // namespace protean
