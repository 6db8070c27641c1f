#pragma once

#include <functional>

#include "apps/served_models.h"
#include "base/result.h"
#include "replica/workers.h"
#include "server/answer/served_model.h"

namespace protean {

// Fails with the reason if a model cannot become the same model as `after` was opened: its defaults
// for generation are others, or if it is awake and has requests to hand over, KV is stored in
// another way or its weights are others.
Status check_hand_over(const OpenModel& before, const OpenModel& after, bool awake);

// Loads a model that is to take over the requests of one that serves. See start_replicas().
Result<LoadedWorkers> load_workers_of(OpenModel& model, const LoadHooks& hooks);

// Makes of a model the same model as `next` was opened, whose workers serve it, or will when it
// wakes. Returns what it is for clients. It keeps its tokenizer, chat template and inbox, which
// clients' requests use.
ServedModel take_over(OpenModel& model, OpenModel next);

}  // namespace protean
