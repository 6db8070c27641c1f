#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace protean {

// Lower-case words of letters and digits, as ROUGE compares them; other bytes than ASCII belong to
// words.
std::vector<std::string> words_of(std::string_view text);

// ROUGE-L: F1 of the longest common subsequence of words. 1 where both are empty.
double rouge_l(std::span<const std::string> candidate, std::span<const std::string> reference);

// F1 of the words that both hold, whatever their order: SQuAD's measure, without its list of
// articles.
double token_f1(std::span<const std::string> candidate, std::span<const std::string> reference);

}  // namespace protean
