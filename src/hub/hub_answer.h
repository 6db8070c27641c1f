#pragma once

#include <chrono>

#include "base/result.h"
#include "hub/model_name.h"
#include "hub/repo_listing.h"
#include "hub/settings.h"
#include "hub/web_client.h"

namespace protean::hub {

// Says in one line why the hub refuses a request for a model, and what to do: there is no such
// model, revision or file, or the user has no access to it.
Error explain_refusal(const WebAnswer& answer, const HubSettings& settings, const ModelName& name);

// Returns how long an answer asks to wait (Retry-After, or the `t` of RateLimit); 0 if it does not.
std::chrono::seconds asked_pause(const WebAnswer& answer);

// Completes what a listing does not state from the answer to HEAD of a file. Fails if the answer
// states no size or digest, or if the file is not of `commit`.
Result<RepoFile> complete_file(const WebAnswer& answer, const std::string& path,
                               const std::string& commit);

// Returns the first byte of a 206 answer's Content-Range, or -1.
std::int64_t first_byte_of(const ResponseReader& fields);

}  // namespace protean::hub
