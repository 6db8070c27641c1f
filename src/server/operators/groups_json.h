#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "contract/groups.h"
#include "http/api_error.h"

namespace protean {

// The groups of a fleet as the admin port shows them: which replicas serve as one, what their
// devices hold, the changes under way and the latest ones. `unix_offset_ns` is Unix time less the
// clock of events.
boost::json::object shown_groups(const GroupsStatus& status, TimeNs unix_offset_ns);

// Shows the same without what devices hold, for merge patches: no field is null, and the changes
// that have ended are fields of an object, named by when they were asked for and a replica.
boost::json::object shown_grouping(const GroupsStatus& status, TimeNs unix_offset_ns);

// Shows the changes that a wish for groups leads to.
boost::json::object shown_changes(const std::vector<Regroup>& changes);

// Returns the share of the time with a step in flight in which devices idled; null if nothing was
// counted.
boost::json::value shown_bubbles(const DeviceUse& use);

// Reads the body of PUT /admin/fleet:
//   {"groups": [["0", "1"]], "by": "shards"}   replicas that are to serve as one; numbers may be
//                                              strings or integers, and "by" may be "layers"
//   {"groups": [["0"], ["1"]]}                 replicas alone
Checked<GroupWish> read_group_wish(std::string_view body);

}  // namespace protean
