#pragma once

namespace protean {

// One callable out of several, for std::visit: the variant's alternative picks the overload, and a
// new alternative does not compile until every visit answers it.
template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};

template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace protean
