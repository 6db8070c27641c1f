#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"
#include "contract/request.h"

namespace protean {

// Where a request came from, for logs and traces.
struct RequestOrigin {
  std::string client;  // address and port
  std::string path;
  std::string traceparent;  // as the client sent it (W3C Trace Context)
};

// The outcome of an accepted request, all its choices together, for logs and traces. Never holds
// text of the request or answer.
struct AnswerRecord {
  std::string id;
  std::string model;
  RequestOrigin origin;
  int status = 200;            // kClientGone if the client left
  int choices = 0;             // choices that have ended
  std::string finish_reasons;  // why the choices ended, such as "stop,length"
  RequestUsage usage;          // summed over the choices
  RequestTimes times;          // starts of the first choice, end of the last
  TimeNs received_ns = 0;      // when the server received it, before tokenisation
};

// Adds a choice that has ended.
void add_choice(AnswerRecord& record, std::string_view finish_reason, const RequestUsage& usage,
                const RequestTimes& times);

// Writes the record's line of the log.
void log_answer(const AnswerRecord& record);

}  // namespace protean
