#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "contract/morph.h"
#include "cost/pages.h"
#include "http/api_error.h"

namespace protean {

// A form, its state and a morph as the admin port shows them.
boost::json::object shown_form(const Form& form);
boost::json::object shown_status(const FormStatus& status);
boost::json::object shown_morph(const Morph& morph);

// Shows the steps of a history, oldest first, with times in Unix seconds. `now_ns` is the present
// time on the clock of events and `unix_time_s` the same on the calendar.
boost::json::array shown_history(const MorphHistory& history, TimeNs now_ns, double unix_time_s);

// Shows what the pages of each device hold: for each layer those of attention and MLP.
boost::json::array shown_devices(const std::vector<DevicePages>& devices);

// Reads the body of PUT /admin/form for a model of `layers` layers:
//   {"layers": "w4"}                       all layers
//   {"layers": ["bf16", "bf16/w4", ...]}   each layer; attention/MLP if they differ
//   {"kv_blocks": 1024}                    the number of KV blocks
//   {"mode": "accuracy", "quality_floor": "8layers"}   either or both: how the policy decides
//   {"release": true}                      alone: lets the policy decide again, or without one
//                                          restores the form of quiet times
Checked<FormWish> read_form_wish(std::string_view body, int layers);

}  // namespace protean
