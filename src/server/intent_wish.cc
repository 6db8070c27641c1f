#include "server/intent_wish.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>

#include <boost/json/object.hpp>

#include "contract/intent.h"
#include "cost/configuration_cost.h"
#include "server/call/json_body.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr double kOfBounds = 0.9;  // share of the answers that keep a bound

constexpr std::int64_t kMostTokens = 1 << 20;  // of a prompt or an answer

// Reads a number of the requests that estimates are for; 0 if it is not there.
Checked<int> read_number(const json::object& asked, std::string_view name, std::int64_t most) {
  const json::value* value = asked.if_contains(name);
  if (value == nullptr) {
    return 0;
  }
  if (!value->is_int64() || value->get_int64() < 1 || value->get_int64() > most) {
    return ApiError{.message = fmt::format("{} must be a whole number from 1 to {}", name, most),
                    .param = std::string(name)};
  }
  return static_cast<int>(value->get_int64());
}

// True if the intent has a bound for an answer.
bool is_bounded(const std::string& intent) {
  const auto known = parse_intent(intent);
  return known.ok() && (known->latency_slo_ms || known->cost_slo);
}

}  // namespace

Checked<IntentWish> read_intent_wish(const std::string& body) {
  const Checked<json::value> parsed = parse_json_body(body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    return *error;
  }
  const json::object* asked = std::get<json::value>(parsed).if_object();
  const json::value* intent = asked == nullptr ? nullptr : asked->if_contains("intent");
  if (intent == nullptr || !intent->is_string()) {
    return ApiError{.message = R"(send {"intent": "min-latency"} or another intent)",
                    .param = "intent"};
  }
  IntentWish wish{.intent = std::string(intent->get_string())};
  if (const auto known = parse_intent(wish.intent); !known.ok()) {
    return ApiError{.message = known.error().message, .param = "intent"};
  }
  std::size_t fields = 1;
  for (const auto& [name, number] :
       {std::pair("batch", &wish.batch), std::pair("prompt_tokens", &wish.prompt_tokens),
        std::pair("output_tokens", &wish.output_tokens)}) {
    const Checked<int> read =
        read_number(*asked, name, number == &wish.batch ? kMostPlannedBatch : kMostTokens);
    if (const ApiError* error = std::get_if<ApiError>(&read)) {
      return *error;
    }
    *number = std::get<int>(read);
    fields += *number > 0 ? 1 : 0;
  }
  if (asked->size() != fields) {
    return ApiError{.message =
                        "an intent has the fields intent, batch, prompt_tokens and "
                        "output_tokens"};
  }
  return wish;
}

IntentWish with_load(IntentWish wish, const Observation& seen, const RecentLengths& lengths) {
  // Before an answer has ended, of requests that have begun, since those that wait have no tokens.
  const auto so_far = [&](std::int64_t tokens) {
    const std::int64_t begun = std::max<std::int64_t>(1, seen.accepted_total - seen.waiting);
    return seen.accepted_total > 0 ? static_cast<int>(std::max<std::int64_t>(1, tokens / begun))
                                   : 0;
  };
  const RecentLengths::Lengths means = lengths.means().value_or(RecentLengths::Lengths{
      .prompt = so_far(seen.prompt_tokens_total), .answer = so_far(seen.output_tokens_total)});
  wish.batch = wish.batch > 0 ? wish.batch : std::max(1, seen.running);
  wish.prompt_tokens = wish.prompt_tokens > 0 ? wish.prompt_tokens : means.prompt;
  if (wish.output_tokens > 0) {
    return wish;
  }
  wish.output_tokens = means.answer;
  if (const auto most = is_bounded(wish.intent) ? lengths.quantile(kOfBounds) : std::nullopt) {
    wish.output_tokens = *most;
    wish.output_quantile = kOfBounds;
  }
  return wish;
}

}  // namespace protean
