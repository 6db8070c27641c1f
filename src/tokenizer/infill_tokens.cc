#include "tokenizer/infill_tokens.h"

#include <array>

namespace protean {
namespace {

// The names that one family gives its tokens, in the order of InfillTokens; empty: it has none.
using FamilyNames = std::array<std::string_view, 6>;

constexpr std::array<FamilyNames, 6> kNamesOfFamilies{{
    // Qwen, CodeGemma
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>",
     "<|fim_pad|>"},
    // StarCoder 2, Granite
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>", "<fim_pad>"},
    // StarCoder, SantaCoder
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<reponame>", "<filename>", "<fim-pad>"},
    // DeepSeek Coder
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "", "", ""},
    // Code Llama, whose names are pieces of SentencePiece
    {"▁<PRE>", "▁<SUF>", "▁<MID>", "", "", ""},
    // GLM 4
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", "", "", ""},
}};

}  // namespace

InfillTokens find_infill_tokens(const Tokenizer& tokenizer) {
  for (const FamilyNames& names : kNamesOfFamilies) {
    InfillTokens found;
    const std::array<TokenId*, 6> places{&found.prefix,     &found.suffix, &found.middle,
                                         &found.repository, &found.file,   &found.pad};
    for (std::size_t i = 0; i < names.size(); ++i) {
      *places.at(i) = names.at(i).empty() ? -1 : tokenizer.find_special(names.at(i));
    }
    if (found.complete()) {
      return found;
    }
  }
  return {};
}

}  // namespace protean
