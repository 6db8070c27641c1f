#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/automaton.h"
#include "grammar/code_points.h"

namespace protean::grammar {

// A regular language over characters, as a nondeterministic automaton whose start is state 0. What
// patterns, formats, lengths and property names are until they become bytes; here they can be
// intersected and complemented. A value.
class Language {
 public:
  static constexpr std::size_t kMaxStates = 20000;

  struct Edge {
    CharacterClass on;
    std::uint32_t to = 0;
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<std::uint32_t> jumps;  // without a character
    bool final = false;
  };

  Language() : states_(1) {}
  explicit Language(std::vector<State> states) : states_(std::move(states)) {}
  // Any text of so many characters.
  static Result<Language> any(std::uint32_t least, std::uint32_t most = kNoLimit);
  static Language literals(const std::vector<std::string>& texts);
  // Any text in which one of these occurs.
  static Language containing(const std::vector<std::string>& texts);

  const std::vector<State>& states() const { return states_; }
  bool empty() const;  // no text is in it
  bool accepts(std::string_view utf8) const;

  // kExhausted beyond kMaxStates.
  Result<Language> intersect(const Language& other) const;
  Result<Language> complement() const;

  // In a JSON string a rest that may be anything may have any escapes; the rest has json_spelling.
  // Uses the frame's count then.
  void emit(AutomatonBuilder& builder, StateId from, Spelling spelling, StateId to) const;

 private:
  using Subset = std::vector<std::uint32_t>;

  void follow_jumps(Subset& subset) const;
  Result<Language> determinize() const;
  Language trimmed() const;
  bool takes_anything(std::uint32_t state) const;

  std::vector<State> states_;
};

}  // namespace protean::grammar
