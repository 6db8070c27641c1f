#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "loadtest/prompt.h"

namespace protean::loadtest {

// Where a server is.
struct ServerAddress {
  bool tls = false;
  std::string host;         // a name or an address, IPv6 without brackets
  std::string port;         // a number
  std::string base_path;    // before /v1, usually empty
  std::string host_header;  // host and port as the Host field has them
};
// "http://127.0.0.1:8000", with or without a path; a path that ends in /v1 is that of the API.
// `flag` is what an error names.
Result<ServerAddress> parse_server_url(std::string_view text, std::string_view flag = "--base-url");

enum class Dialect { kChat, kCompletions };

// What every request of a run has in common, and how one becomes bytes.
struct RequestTemplate {
  ServerAddress server;
  Dialect dialect = Dialect::kCompletions;
  std::string path;  // with the server's base path
  std::string model;
  std::string api_key;               // empty: none is sent
  std::vector<std::string> headers;  // "Name: value", checked
  std::string extra_body;            // JSON object whose fields win; empty: none
  double temperature = 0;
  bool ignore_eos = false;
};
// "chat", "completions", or a path that ends in completions.
Status set_endpoint(RequestTemplate& request, std::string_view endpoint);
Status set_api_key(RequestTemplate& request, std::string_view key);
Status add_header(RequestTemplate& request, std::string_view line);
Status set_extra_body(RequestTemplate& request, std::string_view text);

std::string get_request(const RequestTemplate& request, std::string_view path);
std::string post_request(const RequestTemplate& request, const std::string& body,
                         std::string_view request_id);

std::string planned_body(const RequestTemplate& request, const PromptWriter& prompts,
                         const PlannedRequest& planned);
// A prompt given as text with an answer of one token, to see what the server makes of it.
std::string probe_body(const RequestTemplate& request, std::string_view prompt);

}  // namespace protean::loadtest
