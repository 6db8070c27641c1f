#include "contract/groups.h"

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

}  // namespace protean
