#pragma once

#include <boost/json/object.hpp>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "contract/groups.h"
#include "http/api_error.h"

namespace protean {

// The groups of a fleet as the admin port shows them: which replicas serve as one, what their
// devices hold, the change under way and the latest ones. `now_ns` is the present time on the clock
// of events and `unix_time_s` the same on the calendar.
boost::json::object shown_groups(const GroupsStatus& status, TimeNs now_ns, double unix_time_s);

// Shows the changes that a wish for groups leads to.
boost::json::object shown_changes(const std::vector<Regroup>& changes);

// Reads the body of PUT /admin/fleet:
//   {"groups": [["0", "1"]], "by": "shards"}   replicas that are to serve as one; numbers may be
//                                              strings or integers, and "by" may be "layers"
//   {"groups": [["0"], ["1"]]}                 replicas alone
Checked<GroupWish> read_group_wish(std::string_view body);

}  // namespace protean
