#pragma once

#include <cstdint>
#include <functional>

namespace protean {

// An integer that cannot be mistaken for another kind of integer.
template <class Tag, class Rep>
struct Id {
  Rep value{};
  friend bool operator==(Id, Id) = default;
  friend auto operator<=>(Id, Id) = default;
};

using RequestId = Id<struct RequestTag, std::uint64_t>;
using StepId = Id<struct StepTag, std::uint64_t>;
using MorphId = Id<struct MorphTag, std::uint64_t>;  // names one step of a morph
using DeviceId = Id<struct DeviceTag, std::int32_t>;

// Plain integers, because kernels read arrays of them directly out of a StepPlan.
using TokenId = std::int32_t;
using BlockId = std::int32_t;  // logical: the worker maps it to memory

}  // namespace protean

template <class Tag, class Rep>
struct std::hash<protean::Id<Tag, Rep>> {
  std::size_t operator()(protean::Id<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
