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

// What the small files beside a vocabulary say: tokenizer_config.json, special_tokens_map.json and
// added_tokens.json, the earlier ones first. All of them may be missing.
struct Companions {
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::string tokenizer_class;    // without "Fast" at its end
  std::vector<AddedToken> added;  // by ascending id
};

Result<Companions> read_companions(const std::filesystem::path& directory);

// For files that have no added tokens and no BOS of their own.
Status apply_companions(const Companions& companions, Vocabulary& vocabulary);
// For a tokenizer.json: it rules, the companions fill in what it leaves open.
void apply_companions(const Companions& companions, bool has_frame, Pipeline& pipeline);

Result<std::string> read_file(const std::filesystem::path& path);

}  // namespace protean
