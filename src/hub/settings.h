#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "base/result.h"
#include "hub/proxy.h"

namespace protean::hub {

// Where models come from and where they are kept, as the environment says it. The variables and
// their defaults are those of the Python package huggingface_hub.
struct HubSettings {
  std::string endpoint = "https://huggingface.co";  // HF_ENDPOINT, without a final slash
  std::string token;                  // HF_TOKEN or the token file of HF_HOME; empty: none
  std::string token_source;           // for messages: the variable or file that holds the token
  std::filesystem::path cache;        // HF_HUB_CACHE, else hub/ in HF_HOME
  bool offline = false;               // HF_HUB_OFFLINE: never opens a connection
  std::chrono::seconds patience{10};  // HF_HUB_DOWNLOAD_TIMEOUT: longest silence of a server
  std::chrono::milliseconds first_pause{1000};  // before a request is tried again; then doubled
  ProxyRules proxies;
};

// Returns a variable of the environment, or an empty text.
using Environment = std::function<std::string(const char* name)>;
std::string process_environment(const char* name);

// Fails if HF_ENDPOINT is no URL, if HF_HUB_DOWNLOAD_TIMEOUT is no number of seconds, or if there
// is no home to keep models in.
Result<HubSettings> read_settings(const Environment& environment);

}  // namespace protean::hub
