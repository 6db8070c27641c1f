#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string_view>

#include "server/answer/served_model.h"

namespace protean {

// Returns what llama-server's GET /props says of a model. `slots` is the number of requests that
// the server takes at once.
boost::json::object llama_properties(const ServedModel& model, int slots, std::string_view version);

// A request in work, as llama-server's GET /slots shows it.
struct LlamaSlot {
  std::uint64_t request = 0;  // 0: an idle slot
  int max_tokens = 0;
  int output_tokens = 0;
};
boost::json::object llama_slot(const LlamaSlot& slot, int id, const ServedModel& model);

}  // namespace protean
