#include "server/operators/configurations.h"

#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

namespace protean {
namespace {

// Reads a number of the query; 0 if it is not there.
Checked<int> read_filter(const HttpCall& call, const char* name) {
  const auto text = query_value(call.target, name);
  if (!text) {
    return 0;
  }
  int number = 0;
  const auto [end, failed] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (failed != std::errc() || end != text->data() + text->size() || number < 1) {
    return ApiError{
        .message = fmt::format("{}={} must be a whole number from 1 on", name, printable(*text)),
        .param = name};
  }
  return number;
}

HttpReply reply_with(const std::string& model, const Result<boost::json::object>& found) {
  if (!found.ok()) {
    return error_reply({.status = 503, .message = found.error().message});
  }
  boost::json::object reply{{"model", model}};
  for (const auto& [name, value] : *found) {
    reply[name] = value;
  }
  return {.body = boost::json::serialize(reply)};
}

}  // namespace

HttpHandler::Answer configurations_reply(const HttpCall& call, Service& service,
                                         const ListConfigurations& list) {
  const std::string& model = service.model().names.front();
  if (!list) {
    return error_reply({.status = 404, .message = fmt::format("no plans of {} are kept", model)});
  }
  LoadFilter wanted;
  for (const auto& [name, number] :
       {std::pair("batch", &wanted.batch), std::pair("prompt_tokens", &wanted.prompt_tokens),
        std::pair("output_tokens", &wanted.output_tokens)}) {
    const Checked<int> read = read_filter(call, name);
    if (const ApiError* error = std::get_if<ApiError>(&read)) {
      return error_reply(*error);
    }
    *number = std::get<int>(read);
  }
  return service.answer_in_background(
      call, [list, wanted, model] { return reply_with(model, list(wanted)); });
}

}  // namespace protean
