#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/language.h"

namespace protean::grammar {

enum class RegexDialect {
  kPcre,        // \s is ASCII, '.' is all but a line feed
  kEcmaScript,  // \s has Unicode's spaces, '.' stops at all four line ends: JSON schema's patterns
};
enum class RegexMatch {
  kWhole,   // the text is the match
  kSearch,  // the text has a match in it
};

// The texts that a pattern matches. Only what is regular: look-around, back-references, flags,
// atomic groups, word boundaries and recursion are refused by name (kUnsupported); what is no
// pattern at all is kInvalidArgument. Lazy quantifiers are greedy ones: the texts are the same.
Result<Language> parse_regex(std::string_view pattern, RegexDialect dialect, RegexMatch match);

}  // namespace protean::grammar
