#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "contract/form.h"
#include "contract/groups.h"
#include "contract/model_spec.h"
#include "contract/morph.h"
#include "cost/pages.h"

namespace protean {

// Returns true if each home has equally many devices, with as many pages as those of the others.
bool of_equal_devices(std::span<const Form> homes);

// Returns the form of replicas whose devices have joined: the devices of the first replica, then
// those of the second. Each replica's copy stays whole.
Form joined_form(std::span<const Form> homes);
// Returns the form of joined replicas that all have the form `home`.
Form joined_form(const Form& home, int homes);

// Returns the form of joined replicas that have dropped all but one copy. By shards, the devices
// that hold the same run in each replica divide it (AMOEBA section 3.2). By layers, they divide the
// layers that they hold (KunServe section 4.1); the first and the last layer's devices keep the
// embeddings. Fails with kInvalidArgument if a device has fewer shards or layers than replicas.
Result<Form> divided_form(const Form& home, int homes, GroupBy by);

// Returns the form of joined pipelines of unequal devices that have dropped all but one copy; a
// replica alone is a pipeline of one stage. On devices of equal memory, stages have equally many
// layers, or one more. Each keeps layers that it has, so no weights move (KunServe section 4.1); if
// there is no such division, the stages lack few layers, which their devices fetch. On devices of
// unequal memory, stages have the layers with which the KV cache holds the most blocks. Fails with
// kInvalidArgument if there are more stages than layers, if the devices of the replicas do not
// divide layers alike, or if no layers leave memory for KV.
Result<Form> rebalanced_form(const ModelSpec& spec, std::span<const Form> homes,
                             const PageBudget& budget);

// Returns the HoldShards steps between two forms of the same devices, of which every prefix is
// legal and fits the pages of each device. A step that drops shards comes early if it moves no KV:
// the embeddings and MLPs, then attention with its KV. Steps that fetch take the reverse order.
// Layers are taken from the outer ends of the model inward, and those whose KV moves in turn from
// each stage; or all in reverse. A device that lacks a layer fetches it in the step in which the
// others drop theirs. Of unequal pipelines, the first device that has room for its next layer takes
// it each time. kExhausted: a device lacks pages on the way.
Result<Morph> plan_regroup(const ModelSpec& spec, const Form& from, const Form& to,
                           const PageBudget& budget);

// Returns rebalanced_form() if pipelines with the KV that they have can take it and part again.
Result<Form> rebalanced_form_in(const ModelSpec& spec, std::span<const Form> homes,
                                const PageBudget& budget);

// Returns the KV blocks with which replicas of this form can become a group and part again: as many
// as they have, or fewer if a device lacks pages for KV on the way. By layers, a device takes the
// other replicas' KV of a layer before it gives back its own of another one.
Result<std::int64_t> kv_blocks_to_regroup(const ModelSpec& spec, const Form& home, int homes,
                                          GroupBy by, const PageBudget& budget);

}  // namespace protean
