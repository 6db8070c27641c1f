#include "contract/groups.h"

#include <fmt/format.h>

namespace protean {

std::string_view to_string(GroupBy by) {
  switch (by) {
    case GroupBy::kShards:
      return "shards";
    case GroupBy::kLayers:
      return "layers";
  }
  return "?";
}

std::string names_of(const std::vector<ReplicaId>& replicas) {
  std::string names;
  for (const ReplicaId replica : replicas) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", replica.value);
  }
  return names;
}

}  // namespace protean
