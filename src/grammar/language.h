#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/automaton.h"
#include "grammar/code_points.h"

namespace protean::grammar {

// A regular language over characters, as a nondeterministic automaton that starts in state 0.
// Patterns, formats, lengths and property names are languages until they are emitted as bytes.
class Language {
 public:
  static constexpr std::size_t kMaxStates = 20000;

  struct Edge {
    CharacterClass on;
    std::uint32_t to = 0;
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<std::uint32_t> jumps;  // read no character
    bool final = false;
  };

  Language() : states_(1) {}
  explicit Language(std::vector<State> states) : states_(std::move(states)) {}
  // Returns all texts of `least` to `most` characters.
  static Result<Language> any(std::uint32_t least, std::uint32_t most = kNoLimit);
  static Language literals(const std::vector<std::string>& texts);
  // Returns all texts in which one of `texts` occurs.
  static Language containing(const std::vector<std::string>& texts);

  const std::vector<State>& states() const { return states_; }
  bool empty() const;  // has no text
  bool accepts(std::string_view utf8) const;

  // Fail with kExhausted beyond kMaxStates.
  Result<Language> intersect(const Language& other) const;
  Result<Language> complement() const;

  // Emits the texts. In a JSON string characters have their json_spelling(), except that a rest of
  // the text which may be anything may have any escapes; such a rest uses the frame's count.
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
