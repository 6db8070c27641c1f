#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"
#include "contract/request.h"

namespace protean {

// Where a request came from, as logs and traces tell it.
struct RequestOrigin {
  std::string client;  // address and port
  std::string path;
  std::string traceparent;  // as the client sent it (W3C Trace Context)
};

// What became of an accepted request, all its choices together. Never holds any text of it.
struct AnswerRecord {
  std::string id;
  std::string model;
  RequestOrigin origin;
  int status = 200;            // 499: the client left
  int choices = 0;             // so many have ended
  std::string finish_reasons;  // of the choices, "stop,length"
  RequestUsage usage;          // sums
  RequestTimes times;          // of the first to start, the last to end
  TimeNs received_ns = 0;      // by the server, before tokenisation
};

// Adds a choice that has ended.
void add_choice(AnswerRecord& record, std::string_view finish_reason, const RequestUsage& usage,
                const RequestTimes& times);

// One line in the log.
void log_answer(const AnswerRecord& record);

}  // namespace protean
