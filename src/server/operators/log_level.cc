#include "server/operators/log_level.h"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <string_view>
#include <variant>

#include "base/log_output.h"
#include "server/call/json_body.h"

namespace protean {
namespace {

namespace json = boost::json;

HttpReply level_reply() {
  return {.body = json::serialize(json::object{{"level", log::to_string(log::level())}})};
}

}  // namespace

HttpReply log_level_reply(const HttpCall& call) {
  if (call.method != "PUT") {
    return level_reply();
  }
  const Checked<json::value> parsed = parse_json_body(call.body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    return error_reply(*error);
  }
  const json::value& value = std::get<json::value>(parsed);
  const json::value* name = value.is_object() ? value.as_object().if_contains("level") : nullptr;
  if (name == nullptr || !name->is_string()) {
    return error_reply(
        {.message = R"(send {"level": "debug"} or another level)", .param = "level"});
  }
  const auto level = log::parse_level(std::string_view(name->get_string()));
  if (!level.ok()) {
    return error_reply({.message = level.error().message, .param = "level"});
  }
  log::set_level(*level);
  return level_reply();
}

}  // namespace protean
