#include "replica/one_replica.h"

#include <cstdint>
#include <utility>

namespace protean {

ReplicaOptions options_of(ReplicaOptions all, ReplicaId replica) {
  if (all.sizing.unequal.empty()) {
    return all;
  }
  all.sizing = sizing_of(std::move(all.sizing), replica.value);
  if (all.morph) {
    const Form& form = all.sizing.form;
    FormBounds& bounds = all.morph->bounds;
    all.morph->start = bounds.full = form;
    bounds.most_kv_blocks = bounds.most_kv_blocks > 0 ? form.kv.blocks : 0;
  }
  return all;
}

std::vector<Member> with_own_engines(std::vector<Member> members, const ReplicaOptions& all,
                                     const ModelSpec& spec) {
  for (std::size_t i = 0; i < members.size() && !all.sizing.unequal.empty(); ++i) {
    const ReplicaOptions own = options_of(all, ReplicaId{static_cast<std::int32_t>(i)});
    members[i].engine = engine_config(own, spec);
    members[i].form = own.sizing.form;
  }
  return members;
}

}  // namespace protean
