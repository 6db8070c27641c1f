#include "loadtest/endpoint.h"

#include <algorithm>
#include <boost/json.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>

#include "trace/text.h"

namespace protean::loadtest {
namespace {

namespace json = boost::json;

bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) == 0x7f;
  });
}

std::string head(const RequestTemplate& request, std::string_view line) {
  std::string text(line);
  text += " HTTP/1.1\r\nHost: " + request.server.host_header + "\r\nUser-Agent: protean-bench\r\n";
  if (!request.api_key.empty()) {
    text += "Authorization: Bearer " + request.api_key + "\r\n";
  }
  for (const std::string& header : request.headers) {
    text += header + "\r\n";
  }
  return text;
}

json::object body_object(const RequestTemplate& request, json::value prompt,
                         std::int64_t output_tokens) {
  json::object body;
  body["model"] = request.model;
  if (request.dialect == Dialect::kChat) {
    body["messages"] = json::array{json::object{{"role", "user"}, {"content", std::move(prompt)}}};
    body["max_completion_tokens"] = output_tokens;
  } else {
    body["prompt"] = std::move(prompt);
    body["max_tokens"] = output_tokens;
  }
  body["temperature"] = request.temperature;
  body["stream"] = true;
  body["stream_options"] = json::object{{"include_usage", true}};
  if (request.ignore_eos) {
    body["ignore_eos"] = true;
  }
  if (!request.extra_body.empty()) {
    const json::value extra = json::parse(request.extra_body);  // set_extra_body() has checked it
    for (const auto& [key, value] : extra.get_object()) {
      body[key] = value;
    }
  }
  return body;
}

}  // namespace

Result<ServerAddress> parse_server_url(std::string_view text, std::string_view flag) {
  const auto wrong = [&](std::string_view why) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} {}: {}; expected a URL like http://127.0.0.1:8000", flag,
                      quoted_for_error(text), why);
  };
  const auto parsed = boost::urls::parse_uri({text.data(), text.size()});
  if (!parsed) {
    return wrong("not a URL");
  }
  const boost::urls::url_view& url = *parsed;
  if (url.scheme() != "http" && url.scheme() != "https") {
    return wrong("the scheme is neither http nor https");
  }
  if (url.host().empty() || url.has_userinfo() || url.has_query() || url.has_fragment()) {
    return wrong("a user, query or fragment is not allowed");
  }
  ServerAddress address{.tls = url.scheme() == "https"};
  const auto host = url.host_address();
  address.host.assign(host.begin(), host.end());
  address.port = url.has_port() && !url.port().empty() ? std::string(url.port())
                 : address.tls                         ? "443"
                                                       : "80";
  const auto encoded = url.encoded_host_and_port();
  address.host_header.assign(encoded.begin(), encoded.end());
  const auto path = url.encoded_path();
  address.base_path.assign(path.begin(), path.end());
  while (address.base_path.ends_with('/')) {
    address.base_path.pop_back();
  }
  if (address.base_path.ends_with("/v1")) {
    address.base_path.erase(address.base_path.size() - 3);
  }
  return address;
}

Status set_endpoint(RequestTemplate& request, std::string_view endpoint) {
  if (endpoint == "chat") {
    endpoint = "/v1/chat/completions";
  } else if (endpoint == "completions") {
    endpoint = "/v1/completions";
  }
  if (!endpoint.starts_with('/') || !endpoint.ends_with("completions") || has_control(endpoint) ||
      endpoint.find(' ') != std::string_view::npos) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--endpoint {} must be chat, completions, or a path that ends in completions",
                      quoted_for_error(endpoint));
  }
  request.dialect = endpoint.ends_with("chat/completions") ? Dialect::kChat : Dialect::kCompletions;
  request.path = request.server.base_path + std::string(endpoint);
  return {};
}

Status set_api_key(RequestTemplate& request, std::string_view key) {
  if (has_control(key)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--api-key contains a line break or another control character");
  }
  request.api_key = key;
  return {};
}

Status add_header(RequestTemplate& request, std::string_view line) {
  const std::size_t split = line.find_first_of(":=");
  const std::string_view name = trimmed(line.substr(0, split));
  if (split == std::string_view::npos || name.empty() || has_control(line) ||
      name.find(' ') != std::string_view::npos) {
    return make_error(ErrorCode::kInvalidArgument, "--header {} must be NAME=VALUE or NAME: VALUE",
                      quoted_for_error(line));
  }
  request.headers.push_back(std::string(name) + ": " +
                            std::string(trimmed(line.substr(split + 1))));
  return {};
}

Status set_extra_body(RequestTemplate& request, std::string_view text) {
  boost::system::error_code failed;
  const json::value value = json::parse({text.data(), text.size()}, failed);
  if (failed || !value.is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "--extra-body {} is not a JSON object",
                      quoted_for_error(text));
  }
  request.extra_body = text;
  return {};
}

std::string get_request(const RequestTemplate& request, std::string_view path) {
  return head(request, "GET " + request.server.base_path + std::string(path)) +
         "Accept: */*\r\n\r\n";
}

std::string post_request(const RequestTemplate& request, const std::string& body,
                         std::string_view request_id) {
  return head(request, "POST " + request.path) +
         fmt::format(
             "Accept: text/event-stream\r\nContent-Type: application/json\r\n"
             "X-Request-Id: {}\r\nContent-Length: {}\r\n\r\n{}",
             request_id, body.size(), body);
}

std::string planned_body(const RequestTemplate& request, const PromptWriter& prompts,
                         const PlannedRequest& planned) {
  json::value prompt;
  if (prompts.writes_token_ids()) {
    prompt = json::value_from(prompts.token_ids(planned));
  } else {
    prompt = prompts.text(planned);
  }
  return json::serialize(body_object(request, std::move(prompt), planned.output_tokens));
}

std::string probe_body(const RequestTemplate& request, std::string_view prompt) {
  return json::serialize(
      body_object(request, json::value(json::string_view(prompt.data(), prompt.size())), 1));
}

}  // namespace protean::loadtest
