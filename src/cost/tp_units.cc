#include "cost/tp_units.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace protean {
namespace {

constexpr std::int64_t kInputBlock = 32;  // of a packed matrix

bool is_quantised(Precision precision) {
  return precision != Precision::kF32 && precision != Precision::kBf16;
}

// Whether a unit has to begin with a group, so that stored integers are taken as they are.
bool keeps_groups(const StoredWeights& stored) {
  return is_quantised(stored.precision) ||
         std::any_of(stored.layers.begin(), stored.layers.end(),
                     [](const LayerPrecision& layer) { return is_quantised(layer.mlp); });
}

std::int64_t neurons_per_unit(const ModelSpec& spec, int units) {
  const bool in_groups = keeps_groups(spec.stored);
  return round_up(ceil_div<std::int64_t>(spec.ffn, units),
                  in_groups ? std::int64_t{spec.stored.group} : kInputBlock);
}

}  // namespace

ModelSpec unit_spec(const ModelSpec& spec, int units) {
  if (units == 1) {
    return spec;
  }
  check(units > 1 && (units & (units - 1)) == 0 && spec.attention.kv_heads % units == 0,
        "units are a power of two that divides the KV heads");
  ModelSpec unit = spec;
  unit.attention.heads /= units;
  unit.attention.kv_heads /= units;
  unit.ffn = static_cast<int>(neurons_per_unit(spec, units));
  return unit;
}

NeuronRange neurons_of(const ModelSpec& spec, int unit, int units) {
  check(unit >= 0 && unit < units, "the unit exists");
  const std::int64_t each = units == 1 ? spec.ffn : neurons_per_unit(spec, units);
  const std::int64_t first = std::min<std::int64_t>(unit * each, spec.ffn);
  return {first, std::min<std::int64_t>(each, spec.ffn - first)};
}

}  // namespace protean
