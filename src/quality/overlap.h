#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace protean {

// Splits a text into lower-case words of letters and digits, as ROUGE compares them. Bytes that are
// not ASCII belong to words.
std::vector<std::string> words_of(std::string_view text);

// Returns ROUGE-L, the F1 of the longest common subsequence of words; 1 if both are empty.
double rouge_l(std::span<const std::string> candidate, std::span<const std::string> reference);

// Returns the F1 of the words that both contain in any order: SQuAD's measure, but articles count.
double token_f1(std::span<const std::string> candidate, std::span<const std::string> reference);

}  // namespace protean
