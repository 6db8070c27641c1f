#include "server/operators/priority.h"

#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <optional>
#include <string>
#include <variant>

#include "base/log.h"
#include "server/call/json_body.h"

namespace protean {
namespace {

namespace json = boost::json;

// Reads {"priority": 4}.
std::optional<int> read_priority(const std::string& body) {
  const Checked<json::value> parsed = parse_json_body(body);
  const json::value* const value = std::get_if<json::value>(&parsed);
  const json::object* const fields = value == nullptr ? nullptr : value->if_object();
  const json::value* const number = fields == nullptr ? nullptr : fields->if_contains("priority");
  if (number == nullptr || !number->is_int64() || fields->size() != 1 || number->get_int64() < 1 ||
      number->get_int64() > kMostPriority) {
    return std::nullopt;
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
    return error_reply(
        {.status = 409, .message = fmt::format("{} shares its devices with no model", name)});
  }
  if (call.method == "PUT") {
    const std::optional<int> asked = read_priority(call.body);
    if (!asked) {
      return error_reply({.message = fmt::format(R"(send {{"priority": 4}}, a whole number from 1 )"
                                                 "to {}",
                                                 kMostPriority),
                          .param = "priority"});
    }
    log::info("the priority of {} is {}", name, *asked);
    service.share->set_priority(*asked);
  }
  json::object shown{{"model", name}};
  show_share(*service.share, shown);
  return {.body = json::serialize(shown)};
}

}  // namespace protean
