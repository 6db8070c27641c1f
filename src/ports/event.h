#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/ids.h"
#include "base/replica_id.h"
#include "base/result.h"
#include "base/units.h"
#include "contract/groups.h"
#include "contract/morph.h"
#include "contract/request.h"
#include "contract/step.h"

namespace protean {

// Events are the only input of a fleet and its engines. The server sends them through a queue, the
// simulator from a heap.
struct Arrival {
  Request request;
};
struct Cancel {
  RequestId request;
};
struct StepDone {
  StepResult result;
};
// Executor::prepare() has ended. On failure nothing has changed.
struct MorphReady {
  MorphId id;
  std::optional<Error> failure;
  std::string remark;  // for people: a problem that did not make it fail
};
// Executor::commit() has ended.
struct MorphDone {
  MorphId id;
  std::int64_t pages_free = 0;  // free pages of the device after the commit
};
// The results of the devices of Event::replica are wrong from now on, such as because memory is
// lost. Comes once, before every StepDone and BlocksCopied that could carry a wrong result.
struct DevicesFailed {
  std::string why;  // goes on after "the replica": "has lost memory"
};
using CopyId = Id<struct CopyTag, std::uint64_t>;  // names one copy of blocks between replicas

// KvExchange::copy() has ended.
struct BlocksCopied {
  CopyId id;
};
// An operator asks that up to `requests` requests that decode in Event::replica go on in another
// replica. The fleet answers with one MigrationAnswered.
struct WantMigration {
  std::uint64_t wish_id = 0;
  ReplicaId to;
  int requests = 1;
};
// An operator asks for a form of Event::replica. Its engine answers with one WishAnswered.
struct WantForm {
  std::uint64_t wish_id = 0;
  FormWish wish;
};
// Models that share the devices of Event::replica trade memory. Its engine takes a larger quota at
// once, and a smaller one when KV has given up the pages. Later events have larger numbers; one
// that comes after a larger number is ignored.
struct WantQuota {
  std::int64_t pages = 0;
  std::uint64_t number = 0;
  // A model whose devices have failed has pages that this model lent: they may never come back.
  bool own_is_lost = false;
};
// An operator asks which replicas are to serve as one. The fleet answers with one GroupsAnswered.
struct WantGroups {
  std::uint64_t wish_id = 0;
  GroupWish wish;
};
// Background packing has stored variants, or has ended. Concerns all replicas.
struct VariantsPacked {
  std::shared_ptr<const Packing> packing;
};
struct Tick {};  // time has passed: the engine checks deadlines

struct Event {
  TimeNs at_ns = 0;
  std::variant<Arrival, Cancel, StepDone, MorphReady, MorphDone, DevicesFailed, BlocksCopied,
               WantForm, WantMigration, WantGroups, WantQuota, VariantsPacked, Tick>
      what;
  // The replica whose executor reports, or of which an operator asks something. The fleet chooses
  // the replica of the other events.
  ReplicaId replica;
};

}  // namespace protean
