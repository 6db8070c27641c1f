#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/language.h"

namespace protean::grammar {

enum class RegexDialect {
  kPcre,        // \s is ASCII, '.' is all but a line feed
  kEcmaScript,  // JSON schemas: \s has Unicode's spaces, '.' stops at all four line ends
};
enum class RegexMatch {
  kWhole,   // the text is the match
  kSearch,  // the text holds a match
};

// Returns the texts that a pattern matches. Fails with kUnsupported for look-around,
// back-references, flags, atomic groups, word boundaries and recursion, which it names, and with
// kInvalidArgument if the pattern is malformed. Lazy quantifiers count as greedy ones.
Result<Language> parse_regex(std::string_view pattern, RegexDialect dialect, RegexMatch match);

}  // namespace protean::grammar
