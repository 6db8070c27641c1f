#include "server/answer_writer.h"

namespace protean {

std::string_view to_string(EndReason reason) {
  switch (reason) {
    case EndReason::kStop:
      return "stop";
    case EndReason::kLength:
      return "length";
    case EndReason::kToolCalls:
      return "tool_calls";
  }
  return "stop";
}

}  // namespace protean
