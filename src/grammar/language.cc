#include "grammar/language.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace protean::grammar {

namespace {

Error too_large() {
  return make_error(ErrorCode::kExhausted,
                    "a pattern or length needs an automaton of more than {} states; make it "
                    "simpler or its bounds smaller",
                    Language::kMaxStates);
}

// Returns characters at which ways part: all between two neighbouring cuts are on the same edges.
std::vector<CodePoint> cuts_of(const std::vector<Language::Edge>& edges) {
  std::vector<CodePoint> cuts{0};
  for (const Language::Edge& edge : edges) {
    for (const CodePointRange& range : edge.on.ranges()) {
      cuts.push_back(range.first);
      cuts.push_back(range.last + 1);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

}  // namespace

Result<Language> Language::any(std::uint32_t least, std::uint32_t most) {
  const bool bounded = most != kNoLimit;
  const std::uint32_t last = bounded ? most : least;
  if (last >= kMaxStates) {
    return too_large();
  }
  std::vector<State> states(last + 1);
  for (std::uint32_t i = 0; i <= last; ++i) {
    states[i].final = i >= least;
    if (i < last || !bounded) {
      states[i].edges.push_back({CharacterClass::all(), std::min(i + 1, last)});
    }
  }
  return Language(std::move(states));
}

Language Language::literals(const std::vector<std::string>& texts) {
  std::vector<State> states(1);
  for (const std::string& text : texts) {
    std::uint32_t at = 0;
    for (const CodePoint character : code_points(text)) {
      const CharacterClass on = CharacterClass::of(character);
      const auto known = std::find_if(states[at].edges.begin(), states[at].edges.end(),
                                      [&on](const Edge& edge) { return edge.on == on; });
      if (known != states[at].edges.end()) {
        at = known->to;
        continue;
      }
      const auto next = static_cast<std::uint32_t>(states.size());
      states[at].edges.push_back({on, next});
      states.emplace_back();
      at = next;
    }
    states[at].final = true;
  }
  return Language(std::move(states));
}

Language Language::containing(const std::vector<std::string>& texts) {
  Language language = literals(texts);
  const auto before = static_cast<std::uint32_t>(language.states_.size());
  for (State& state : language.states_) {
    if (state.final) {
      state.edges.push_back({CharacterClass::all(), before + 1});
    }
  }
  language.states_.push_back({{{CharacterClass::all(), before}}, {0}, false});
  language.states_.push_back({{{CharacterClass::all(), before + 1}}, {}, true});
  State start;  // becomes state 0; the former state 0 moves to the end
  start.jumps = {before, before + 2};
  language.states_.push_back(language.states_[0]);
  for (State& state : language.states_) {
    std::replace(state.jumps.begin(), state.jumps.end(), 0U, before + 2);
  }
  language.states_[0] = start;
  return language;
}

void Language::follow_jumps(Subset& subset) const {
  std::vector<std::uint32_t> queue = subset;
  std::sort(subset.begin(), subset.end());
  subset.erase(std::unique(subset.begin(), subset.end()), subset.end());
  while (!queue.empty()) {
    const std::uint32_t from = queue.back();
    queue.pop_back();
    for (const std::uint32_t to : states_[from].jumps) {
      const auto place = std::lower_bound(subset.begin(), subset.end(), to);
      if (place == subset.end() || *place != to) {
        subset.insert(place, to);
        queue.push_back(to);
      }
    }
  }
}

bool Language::accepts(std::string_view utf8) const {
  Subset now{0};
  follow_jumps(now);
  for (const CodePoint character : code_points(utf8)) {
    Subset next;
    for (const std::uint32_t state : now) {
      for (const Edge& edge : states_[state].edges) {
        if (edge.on.contains(character)) {
          next.push_back(edge.to);
        }
      }
    }
    follow_jumps(next);
    now = std::move(next);
  }
  return std::any_of(now.begin(), now.end(), [this](std::uint32_t s) { return states_[s].final; });
}

bool Language::empty() const {
  const Language kept = trimmed();
  return std::none_of(kept.states_.begin(), kept.states_.end(),
                      [](const State& state) { return state.final; });
}

// Returns the language without the states from which no final state can be reached.
Language Language::trimmed() const {
  std::vector<std::vector<std::uint32_t>> before(states_.size());
  std::vector<char> useful(states_.size(), 0);
  std::vector<std::uint32_t> queue;
  for (std::uint32_t s = 0; s < states_.size(); ++s) {
    for (const Edge& edge : states_[s].edges) {
      before[edge.to].push_back(s);
    }
    for (const std::uint32_t to : states_[s].jumps) {
      before[to].push_back(s);
    }
    if (states_[s].final) {
      useful[s] = 1;
      queue.push_back(s);
    }
  }
  while (!queue.empty()) {
    const std::uint32_t at = queue.back();
    queue.pop_back();
    for (const std::uint32_t s : before[at]) {
      if (useful[s] == 0) {
        useful[s] = 1;
        queue.push_back(s);
      }
    }
  }
  std::vector<std::uint32_t> number(states_.size(), 0);
  std::uint32_t count = 0;
  for (std::uint32_t s = 0; s < states_.size(); ++s) {
    number[s] = s == 0 || useful[s] != 0 ? count++ : 0;
  }
  std::vector<State> kept(count);
  for (std::uint32_t s = 0; s < states_.size(); ++s) {
    if (s != 0 && useful[s] == 0) {
      continue;
    }
    State& state = kept[number[s]];
    state.final = states_[s].final;
    for (const Edge& edge : states_[s].edges) {
      if (useful[edge.to] != 0) {
        state.edges.push_back({edge.on, number[edge.to]});
      }
    }
    for (const std::uint32_t to : states_[s].jumps) {
      if (useful[to] != 0) {
        state.jumps.push_back(number[to]);
      }
    }
  }
  return Language(std::move(kept));
}

Result<Language> Language::intersect(const Language& other) const {
  using Pair = std::pair<std::uint32_t, std::uint32_t>;
  std::map<Pair, std::uint32_t> number{{{0, 0}, 0}};
  std::vector<Pair> pairs{{0, 0}};
  std::vector<State> product;
  const auto find = [&](Pair pair) {
    const auto [it, fresh] = number.try_emplace(pair, static_cast<std::uint32_t>(pairs.size()));
    if (fresh) {
      pairs.push_back(pair);
    }
    return it->second;
  };
  std::size_t edges = 0;
  for (std::size_t at = 0; at < pairs.size(); ++at) {
    if (pairs.size() > kMaxStates || edges > kMaxStates * 16) {
      return too_large();
    }
    const auto [a, b] = pairs[at];
    State state;
    state.final = states_[a].final && other.states_[b].final;
    for (const std::uint32_t to : states_[a].jumps) {
      state.jumps.push_back(find({to, b}));
    }
    for (const std::uint32_t to : other.states_[b].jumps) {
      state.jumps.push_back(find({a, to}));
    }
    for (const Edge& left : states_[a].edges) {
      for (const Edge& right : other.states_[b].edges) {
        CharacterClass on = left.on.intersect(right.on);
        if (!on.empty()) {
          state.edges.push_back({std::move(on), find({left.to, right.to})});
        }
      }
    }
    edges += state.edges.size() + state.jumps.size();
    product.push_back(std::move(state));
  }
  return Language(std::move(product)).trimmed();
}

Result<Language> Language::determinize() const {
  std::map<Subset, std::uint32_t> number;
  std::vector<Subset> subsets;
  std::vector<State> states;
  const auto find = [&](Subset subset) {
    follow_jumps(subset);
    const auto [it, fresh] = number.try_emplace(subset, static_cast<std::uint32_t>(number.size()));
    if (fresh) {
      subsets.push_back(std::move(subset));
    }
    return it->second;
  };
  find({0});
  std::size_t work = 0;
  for (std::size_t at = 0; at < subsets.size(); ++at) {
    const Subset subset = subsets[at];
    State state;
    std::vector<Edge> leaving;
    for (const std::uint32_t s : subset) {
      state.final |= states_[s].final;
      leaving.insert(leaving.end(), states_[s].edges.begin(), states_[s].edges.end());
    }
    const std::vector<CodePoint> cuts = cuts_of(leaving);
    std::map<std::uint32_t, std::vector<CodePointRange>> ranges;
    work += cuts.size() * (leaving.size() + 1);
    if (subsets.size() > kMaxStates || work > kMaxStates * 1000) {
      return too_large();
    }
    for (std::size_t i = 0; i < cuts.size() && cuts[i] <= kLastCodePoint; ++i) {
      Subset next;
      for (const Edge& edge : leaving) {
        if (edge.on.contains(cuts[i])) {
          next.push_back(edge.to);
        }
      }
      const CodePoint end = i + 1 < cuts.size() ? cuts[i + 1] - 1 : kLastCodePoint;
      ranges[find(std::move(next))].push_back({cuts[i], end});
    }
    for (auto& [to, on] : ranges) {
      state.edges.push_back({CharacterClass(std::move(on)), to});
    }
    states.push_back(std::move(state));
  }
  return Language(std::move(states));
}

Result<Language> Language::complement() const {
  Result<Language> whole = trimmed().determinize();
  if (!whole) {
    return whole;
  }
  for (State& state : whole->states_) {
    state.final = !state.final;
  }
  return whole->trimmed();
}

bool Language::takes_anything(std::uint32_t s) const {
  const State& state = states_[s];
  return state.final && state.jumps.empty() && state.edges.size() == 1 && state.edges[0].to == s &&
         state.edges[0].on == CharacterClass::all();
}

void Language::emit(AutomatonBuilder& builder, StateId from, Spelling spelling, StateId to) const {
  std::vector<StateId> number(states_.size());
  std::generate(number.begin(), number.end(), [&builder] { return builder.state(); });
  builder.go(from, number[0]);
  for (std::uint32_t s = 0; s < states_.size() && !builder.exhausted(); ++s) {
    if (spelling == Spelling::kJsonString && takes_anything(s)) {
      const std::uint32_t loop = builder.loop(0, kNoLimit);
      const StateId character = builder.state();
      builder.count(number[s], loop, character);
      builder.begins_string_character(character, loop);
      emit_any_json_character(builder, character, number[s]);
      builder.go(number[s], to);
      continue;
    }
    for (const Edge& edge : states_[s].edges) {
      emit_character(builder, number[s], edge.on, spelling, number[edge.to]);
    }
    for (const std::uint32_t jump : states_[s].jumps) {
      builder.go(number[s], number[jump]);
    }
    if (states_[s].final) {
      builder.go(number[s], to);
    }
  }
}

}  // namespace protean::grammar
