#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string_view>

#include "base/units.h"
#include "contract/morph.h"
#include "http/api_error.h"

namespace protean {

// A form and how it came about, as the admin port shows them.
boost::json::object shown_form(const Form& form);
boost::json::object shown_status(const FormStatus& status);
boost::json::object shown_morph(const Morph& morph);

// The steps of `status.history`, oldest first. Times are Unix seconds; `now_ns` is this moment on
// the clock of events.
boost::json::array shown_history(const FormStatus& status, TimeNs now_ns, double unix_time_s);

// What an operator sent to PUT /admin/form, for a model of so many layers:
//   {"layers": "w4"}                       all layers
//   {"layers": ["bf16", "bf16/w4", ...]}   each layer; attention/MLP where they differ
//   {"kv_blocks": 1024}                    fewer or more blocks
//   {"release": true}                      alone: the policy decides again
Checked<FormWish> read_form_wish(std::string_view body, int layers);

}  // namespace protean
