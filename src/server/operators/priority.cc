#include "server/operators/priority.h"

#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <string>
#include <variant>

#include "base/log.h"
#include "server/call/json_body.h"

namespace protean {
namespace {

namespace json = boost::json;

// Reads {"priority": 4}.
Checked<int> read_priority(const std::string& body) {
  const Checked<json::value> parsed = parse_json_body(body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    return *error;
  }
  const json::object* const fields = std::get<json::value>(parsed).if_object();
  const json::value* const number = fields == nullptr ? nullptr : fields->if_contains("priority");
  if (number == nullptr || fields->size() != 1) {
    return ApiError{.message = R"(send {"priority": 4} and no other field)", .param = "priority"};
  }
  if (!number->is_int64() || number->get_int64() < 1 || number->get_int64() > kMostPriority) {
    return ApiError{.message = fmt::format("priority {} must be a whole number from 1 to {}",
                                           excerpt(json::serialize(*number)), kMostPriority),
                    .param = "priority"};
  }
  return static_cast<int>(number->get_int64());
}

}  // namespace

void show_share(const TimeShare& share, json::object& shown) {
  shown["priority"] = share.priority();
  shown["step_seconds"] = share.step_seconds();
}

HttpReply priority_reply(const HttpCall& call, const Service& service) {
  const std::string& name = service.model().names.front();
  if (service.share == nullptr) {
    return error_reply({.status = 409, .message = fmt::format("{} has no priority", name)});
  }
  if (call.method == "PUT") {
    const Checked<int> asked = read_priority(call.body);
    if (const ApiError* error = std::get_if<ApiError>(&asked)) {
      return error_reply(*error);
    }
    service.share->set_priority(std::get<int>(asked));
    log::info("the priority of {} is {}", name, std::get<int>(asked));
  }
  json::object shown{{"model", name}};
  show_share(*service.share, shown);
  return {.body = json::serialize(shown)};
}

}  // namespace protean
