#include "server/answer/answer_record.h"

#include <algorithm>

#include "base/log_output.h"

namespace protean {
namespace {

// Returns the earlier time. Times that are not positive stand for what never happened.
TimeNs earlier(TimeNs a, TimeNs b) {
  return a <= 0 || b <= 0 ? std::max(a, b) : std::min(a, b);
}

double ms_between(TimeNs from, TimeNs to) {
  return to > 0 ? static_cast<double>(to - from) / static_cast<double>(kNsPerMs) : 0.0;
}

}  // namespace

void add_choice(AnswerRecord& record, std::string_view finish_reason, const RequestUsage& usage,
                const RequestTimes& times) {
  record.finish_reasons += record.choices++ > 0 ? "," : "";
  record.finish_reasons += finish_reason;
  record.usage.prompt_tokens += usage.prompt_tokens;
  record.usage.cached_tokens += usage.cached_tokens;
  record.usage.output_tokens += usage.output_tokens;
  record.usage.preemptions += usage.preemptions;
  record.times.arrived_ns = earlier(record.times.arrived_ns, times.arrived_ns);
  record.times.scheduled_ns = earlier(record.times.scheduled_ns, times.scheduled_ns);
  record.times.first_token_ns = earlier(record.times.first_token_ns, times.first_token_ns);
  record.times.finished_ns = std::max(record.times.finished_ns, times.finished_ns);
}

void log_answer(const AnswerRecord& record) {
  log::write(log::Level::kInfo, "request",
             {{"id", record.id},
              {"model", record.model},
              {"path", record.origin.path},
              {"client", record.origin.client},
              {"status", std::int64_t{record.status}},
              {"prompt", std::int64_t{record.usage.prompt_tokens}},
              {"cached", std::int64_t{record.usage.cached_tokens}},
              {"output", std::int64_t{record.usage.output_tokens}},
              {"preemptions", std::int64_t{record.usage.preemptions}},
              {"finish", record.finish_reasons},
              {"ttft_ms", ms_between(record.received_ns, record.times.first_token_ns)},
              {"duration_ms", ms_between(record.received_ns, record.times.finished_ns)}});
}

}  // namespace protean
