#include "hub/hub_answer.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/nearest.h"
#include "hub/cache.h"

namespace protean::hub {
namespace {

// Returns the number that `text` begins with, or -1.
std::int64_t leading_number(std::string_view text) {
  std::int64_t number = -1;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failed == std::errc() ? number : -1;
}

// Returns the digest in an ETag: `"x"` or `W/"x"`.
std::string digest_of(std::string_view tag) {
  if (tag.starts_with("W/")) {
    tag.remove_prefix(2);
  }
  if (tag.size() >= 2 && tag.front() == '"' && tag.back() == '"') {
    tag = tag.substr(1, tag.size() - 2);
  }
  return is_digest(tag) ? std::string(tag) : std::string();
}

// Text of the hub for people, fit for one line of a message.
std::string one_line(std::string_view text) {
  constexpr std::size_t kLongest = 200;
  std::string line(text.substr(0, kLongest));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return line;
}

Error no_such_model(const HubSettings& settings, const ModelName& name) {
  std::vector<std::string> known;
  for (const CachedRepo& repo : Cache(settings.cache).list()) {
    known.push_back(repo.repo);
  }
  const std::string near = nearest(name.repo, known);
  const std::string advice = near.empty() ? "check the spelling" : "did you mean " + near + "?";
  return make_error(ErrorCode::kNotFound, "there is no model {} at {}, or it is private: {}{}",
                    name.repo, settings.endpoint, advice,
                    settings.token.empty() ? "; a private one needs HF_TOKEN" : "");
}

Error no_access(const HubSettings& settings, const ModelName& name) {
  const std::string page = settings.endpoint + "/" + name.repo;
  if (settings.token.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} is gated: accept its terms at {}, then set HF_TOKEN to a token of that "
                      "account",
                      name.repo, page);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "{} is gated, and the token of {} has no access: accept its terms at {} with "
                    "that account",
                    name.repo, settings.token_source, page);
}

}  // namespace

Error explain_refusal(const WebAnswer& answer, const HubSettings& settings, const ModelName& name) {
  const std::string_view code = answer.field("X-Error-Code");
  const std::string message = one_line(answer.field("X-Error-Message"));
  const int status = answer.status();
  const std::string path = answer.url.target.substr(0, answer.url.target.find('?'));
  if (code == "GatedRepo") {
    return no_access(settings, name);
  }
  if (code == "RevisionNotFound") {
    return make_error(ErrorCode::kNotFound, "{} has no revision {}: check the name after '@'",
                      name.repo, name.branch());
  }
  if (code == "EntryNotFound") {
    return make_error(ErrorCode::kNotFound, "{} of {} is not there: HTTP {}",
                      path.substr(path.rfind('/') + 1), name.repo, status);
  }
  const bool bad_token = message.find("Invalid credentials") != message.npos ||
                         message.find("Invalid username or password") != message.npos;
  if (status == 401 && bad_token && !settings.token.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{} refuses the token of {}: HTTP 401",
                      settings.endpoint, settings.token_source);
  }
  if (code == "RepoNotFound" || status == 404 || status == 401) {
    return no_such_model(settings, name);
  }
  if (status == 403) {
    return make_error(ErrorCode::kInvalidArgument, "{} refuses access to {}: HTTP 403{}",
                      answer.url.host_header, name.repo, message.empty() ? "" : ": " + message);
  }
  return make_error(is_temporary(status) ? ErrorCode::kUnavailable : ErrorCode::kInternal,
                    "{} answers HTTP {} to {}{}", answer.url.host_header, status, path,
                    message.empty() ? "" : ": " + message);
}

std::chrono::seconds asked_pause(const WebAnswer& answer) {
  if (const std::int64_t stated = leading_number(answer.field("Retry-After")); stated > 0) {
    return std::chrono::seconds(stated);
  }
  const std::string_view limit = answer.field("RateLimit");  // "api";r=0;t=55
  const std::size_t at = limit.find(";t=");
  const std::int64_t stated = at == limit.npos ? 0 : leading_number(limit.substr(at + 3));
  return std::chrono::seconds(std::max<std::int64_t>(stated, 0));
}

Result<RepoFile> complete_file(const WebAnswer& answer, const std::string& path,
                               const std::string& commit) {
  if (answer.field("X-Repo-Commit") != commit) {
    return make_error(ErrorCode::kCorrupt, "{} answers for {} with another commit than {}",
                      answer.url.host_header, path, commit);
  }
  const auto stated = [&](std::string_view linked, std::string_view plain) {
    const std::string_view text = answer.field(linked);
    return text.empty() ? answer.field(plain) : text;
  };
  RepoFile file{.path = path,
                .size = leading_number(stated("X-Linked-Size", "Content-Length")),
                .digest = digest_of(stated("X-Linked-ETag", "ETag"))};
  if (file.size < 0 || file.digest.empty()) {
    return make_error(ErrorCode::kUnsupported, "{} states no {} of {}, so it cannot be checked",
                      answer.url.host_header, file.size < 0 ? "size" : "checksum", path);
  }
  return file;
}

std::int64_t first_byte_of(const ResponseReader& fields) {
  constexpr std::string_view kUnit = "bytes ";
  const std::string_view range = fields.field("Content-Range");
  return range.starts_with(kUnit) ? leading_number(range.substr(kUnit.size())) : -1;
}

}  // namespace protean::hub
