#pragma once

#include <functional>

#include "apps/served_models.h"
#include "base/result.h"
#include "replica/workers.h"
#include "server/answer/served_model.h"

namespace protean {

// Fails with the reason if what serves a model cannot hand its requests over to the same model as
// `after` was opened: KV is stored in another way, or other weights have been written.
Status check_hand_over(const OpenModel& before, const OpenModel& after);

// Loads a model that is to take over the requests of one that serves. See start_replicas().
Result<LoadedWorkers> load_workers_of(OpenModel& model, const std::function<void()>& await_turn);

// Makes of a model the same model as `next` was opened, whose workers serve it, or will when it
// wakes. Returns what it is for clients. It keeps its tokenizer, chat template and inbox, which
// clients' requests use.
ServedModel take_over(OpenModel& model, OpenModel next);

}  // namespace protean
