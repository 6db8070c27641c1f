#include "hub/settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <system_error>

namespace protean::hub {
namespace {

namespace fs = std::filesystem;

std::string first_of(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string value = environment(name); !value.empty()) {
      return value;
    }
  }
  return {};
}

bool is_true(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

// Expands a leading "~" as huggingface_hub does.
fs::path expanded(const std::string& path, const std::string& home) {
  return path == "~" || path.starts_with("~/") ? fs::path(home + path.substr(1)) : fs::path(path);
}

std::string without_spaces(std::string text) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  text.erase(std::remove_if(text.begin(), text.end(), is_space), text.end());
  return text;
}

void read_token(const Environment& environment, const fs::path& path, HubSettings& settings) {
  if (is_true(environment("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) {
    return;
  }
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    settings.token = without_spaces(environment(name));
    if (!settings.token.empty()) {
      settings.token_source = name;
      return;
    }
  }
  std::ifstream file(path);
  settings.token = without_spaces({std::istreambuf_iterator<char>(file), {}});
  settings.token_source = settings.token.empty() ? "" : path.string();
}

}  // namespace

std::string process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<HubSettings> read_settings(const Environment& environment) {
  HubSettings settings;
  if (std::string endpoint = environment("HF_ENDPOINT"); !endpoint.empty()) {
    while (endpoint.ends_with('/')) {
      endpoint.pop_back();
    }
    const auto url = parse_web_url(endpoint);
    if (!url.ok()) {
      return make_error(ErrorCode::kInvalidArgument, "HF_ENDPOINT: {}", url.error().message);
    }
    if (!url->userinfo.empty()) {  // errors that name the hub would show it
      return make_error(ErrorCode::kInvalidArgument,
                        "HF_ENDPOINT has a user name or password: write only https://HOST, and "
                        "the token in HF_TOKEN");
    }
    settings.endpoint = std::move(endpoint);
  }
  const std::string home = environment("HOME");
  const std::string shared = environment("XDG_CACHE_HOME");
  std::string hub_home = environment("HF_HOME");
  if (hub_home.empty() && !(home.empty() && shared.empty())) {
    hub_home = (shared.empty() ? home + "/.cache" : shared) + "/huggingface";
  }
  const std::string cache = first_of(environment, {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  if (cache.empty() && hub_home.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "there is no folder to keep models in: set HF_HUB_CACHE, HF_HOME or HOME");
  }
  settings.cache = expanded(cache.empty() ? hub_home + "/hub" : cache, home);
  settings.offline = is_true(first_of(environment, {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));
  if (const std::string text = environment("HF_HUB_DOWNLOAD_TIMEOUT"); !text.empty()) {
    int seconds = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (failed != std::errc() || end != text.data() + text.size() || seconds < 1) {
      return make_error(ErrorCode::kInvalidArgument,
                        "HF_HUB_DOWNLOAD_TIMEOUT is \"{}\": write a whole number of seconds, at "
                        "least 1",
                        text);
    }
    settings.patience = std::chrono::seconds(seconds);
  }
  const std::string token_path = environment("HF_TOKEN_PATH");
  read_token(environment, expanded(token_path.empty() ? hub_home + "/token" : token_path, home),
             settings);
  settings.proxies = {
      .https = first_of(environment, {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}),
      .http = first_of(environment, {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"}),
      .direct = first_of(environment, {"no_proxy", "NO_PROXY"})};
  return settings;
}

}  // namespace protean::hub
