#include "measure/schedule_score.h"

#include <algorithm>
#include <unordered_map>

#include "quality/overlap.h"

namespace protean {
namespace {

// The tokens of one prompt's answer so far.
struct Answer {
  std::vector<TokenId> prompt;
  std::vector<TokenId> tokens;
  bool ended = false;  // by a stop token, or by the context's end
};

Request span_request(const Answer& answer, const GenerationDefaults& defaults, int tokens) {
  Request request;
  request.prompt = answer.prompt;
  request.prompt.insert(request.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  request.sampling.temperature = 0.0F;
  request.stop_ids = defaults.stop_ids;
  request.max_tokens = tokens;
  return request;
}

Status continue_answers(LocalClient& client, std::vector<Answer>& answers, int tokens) {
  std::unordered_map<RequestId, Answer*> outstanding;
  auto next = answers.begin();
  while (next != answers.end() || !outstanding.empty()) {
    for (; next != answers.end() && outstanding.size() < kMostOutstanding; ++next) {
      const int room =
          client.max_model_len() - static_cast<int>(next->prompt.size() + next->tokens.size());
      next->ended = next->ended || room < 1;
      if (!next->ended) {
        const RequestId id =
            client.submit(span_request(*next, client.files().generation, std::min(tokens, room)));
        outstanding[id] = &*next;
      }
    }
    if (outstanding.empty()) {
      break;
    }
    for (const OutputBatch& batch : client.take()) {
      for (const Output& output : batch.outputs) {
        if (const auto* token = std::get_if<NewToken>(&output)) {
          outstanding.at(token->request)->tokens.push_back(token->token);
        } else if (const auto* refused = std::get_if<Refused>(&output)) {
          return refused->error;
        } else if (const auto* finished = std::get_if<Finished>(&output)) {
          if (finished->reason == FinishReason::kFailed) {
            return make_error(ErrorCode::kInternal, "generation failed: {}", finished->failure);
          }
          outstanding.at(finished->request)->ended = finished->reason == FinishReason::kStop;
          outstanding.erase(finished->request);
        }
      }
    }
  }
  return {};
}

Result<std::vector<std::vector<TokenId>>> run_schedule(const ClientAt& client_at,
                                                       std::span<const Continuation> prompts,
                                                       const PrecisionSchedule& schedule) {
  std::vector<Answer> answers(prompts.size());
  for (const PrecisionSpan& span : schedule) {
    const auto client = client_at(span.precision);
    if (!client.ok()) {
      return client.error();
    }
    for (std::size_t i = 0; i < prompts.size() && answers[i].prompt.empty(); ++i) {
      answers[i].prompt = (*client)->files().tokenizer->encode(prompts[i].prompt, {});
    }
    if (Status done = continue_answers(**client, answers, span.tokens); !done.ok()) {
      return done.error();
    }
  }
  std::vector<std::vector<TokenId>> tokens;
  for (Answer& answer : answers) {
    tokens.push_back(std::move(answer.tokens));
  }
  return tokens;
}

using Words = std::vector<std::string>;

ScheduleScore compare(std::span<const Words> answers, std::span<const Words> baseline,
                      std::span<const Continuation> prompts) {
  ScheduleScore score;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    score.rouge_l_baseline += rouge_l(answers[i], baseline[i]);
    score.token_f1_baseline += token_f1(answers[i], baseline[i]);
    if (!prompts[i].reference.empty()) {
      const Words truth = words_of(prompts[i].reference);
      ++score.references;
      score.rouge_l_truth += rouge_l(answers[i], truth);
      score.token_f1_truth += token_f1(answers[i], truth);
    }
  }
  const auto count = static_cast<double>(answers.size());
  const double references = std::max(1, score.references);
  score.rouge_l_baseline /= count;
  score.token_f1_baseline /= count;
  score.rouge_l_truth /= references;
  score.token_f1_truth /= references;
  return score;
}

}  // namespace

Result<std::vector<ScheduleScore>> score_schedules(
    const ClientAt& client_at, std::span<const Continuation> prompts,
    std::span<const PrecisionSchedule> schedules,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress) {
  std::vector<ScheduleScore> scores;
  std::vector<Words> baseline;
  for (const PrecisionSchedule& schedule : schedules) {
    auto tokens = run_schedule(client_at, prompts, schedule);
    if (!tokens.ok()) {
      return tokens.error();
    }
    const auto client = client_at(schedule.front().precision);
    std::vector<Words> answers;
    std::int64_t output_tokens = 0;
    for (const std::vector<TokenId>& answer : *tokens) {
      answers.push_back(words_of(decode(*(*client)->files().tokenizer, answer)));
      output_tokens += std::ssize(answer);
    }
    if (baseline.empty()) {
      baseline = answers;
    }
    ScheduleScore& score = scores.emplace_back(compare(answers, baseline, prompts));
    score.schedule = to_string(schedule);
    score.output_tokens = output_tokens;
    progress(std::ssize(scores), std::ssize(schedules));
  }
  return scores;
}

}  // namespace protean
