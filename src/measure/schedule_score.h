#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "measure/documents.h"
#include "quality/schedule.h"
#include "replica/local_client.h"

namespace protean {

// Scores of one precision schedule, as means over all prompts. The baseline is the greedy
// continuations at full precision, the truth the prompts' references.
struct ScheduleScore {
  std::string schedule;
  std::int64_t output_tokens = 0;
  double rouge_l_baseline = 0.0;
  double token_f1_baseline = 0.0;
  int references = 0;  // prompts with a reference
  double rouge_l_truth = 0.0;
  double token_f1_truth = 0.0;
};

// Returns the model at a precision. Opens it in the first call.
using ClientAt = std::function<Result<LocalClient*>(Precision)>;

// Continues every prompt greedily under each schedule; the first is the baseline. Each span of a
// schedule recomputes the KV of earlier tokens at its own precision.
Result<std::vector<ScheduleScore>> score_schedules(
    const ClientAt& client_at, std::span<const Continuation> prompts,
    std::span<const PrecisionSchedule> schedules,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress);

}  // namespace protean
