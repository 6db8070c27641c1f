#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "loadtest/prompt.h"

namespace protean::loadtest {

// The parsed URL of a server.
struct ServerAddress {
  bool tls = false;
  std::string host;         // a name or an address; IPv6 without brackets
  std::string port;         // a number
  std::string base_path;    // path before /v1, usually empty
  std::string host_header;  // value of the Host field
};
// Parses a URL such as "http://127.0.0.1:8000", with or without a path. A final /v1 is dropped.
// Errors name `flag`.
Result<ServerAddress> parse_server_url(std::string_view text, std::string_view flag = "--base-url");

enum class Dialect { kChat, kCompletions };

// What all requests of a run have in common.
struct RequestTemplate {
  ServerAddress server;
  Dialect dialect = Dialect::kCompletions;
  std::string path;  // includes the server's base path
  std::string model;
  std::string api_key;               // not sent if empty
  std::vector<std::string> headers;  // "Name: value"
  std::string extra_body;            // JSON object whose fields replace ours; empty: none
  double temperature = 0;
  bool ignore_eos = false;
};
// Accepts "chat", "completions", or a path that ends in completions.
Status set_endpoint(RequestTemplate& request, std::string_view endpoint);
Status set_api_key(RequestTemplate& request, std::string_view key);
Status add_header(RequestTemplate& request, std::string_view line);
Status set_extra_body(RequestTemplate& request, std::string_view text);

std::string get_request(const RequestTemplate& request, std::string_view path);
std::string post_request(const RequestTemplate& request, const std::string& body,
                         std::string_view request_id);

std::string planned_body(const RequestTemplate& request, const PromptWriter& prompts,
                         const PlannedRequest& planned);
// Returns a body that asks for one token of answer to `prompt`.
std::string probe_body(const RequestTemplate& request, std::string_view prompt);

}  // namespace protean::loadtest
