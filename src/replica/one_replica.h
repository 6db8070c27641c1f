#pragma once

#include <vector>

#include "contract/model_spec.h"
#include "fleet/station.h"
#include "replica/replica_options.h"

namespace protean {

// Returns the options with the form and the KV of one replica, which differ from those of the
// others if replicas have unequal memory.
ReplicaOptions options_of(ReplicaOptions all, ReplicaId replica);

// Gives each member, by replica, the engine and the form of its own options.
std::vector<Member> with_own_engines(std::vector<Member> members, const ReplicaOptions& all,
                                     const ModelSpec& spec);

}  // namespace protean
