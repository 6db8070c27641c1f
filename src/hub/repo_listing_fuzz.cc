// Fuzzes what a hub can make us read: listings, indexes, and the names and URLs in them.

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/check.h"
#include "hub/needed_files.h"
#include "hub/repo_listing.h"
#include "hub/web_url.h"

namespace protean::hub {
namespace {

void check_inside(const std::string& path) {
  const std::filesystem::path place =
      ("/cache/snapshot" / std::filesystem::path(path)).lexically_normal();
  check(place.string().starts_with("/cache/snapshot/"), "a listed path stays in its folder");
}

void fuzz_listing(std::string_view text) {
  const auto listing = parse_repo_listing(text);
  if (!listing.ok()) {
    check(listing.error().message.find('\n') == std::string::npos, "an error is one line");
    return;
  }
  std::vector<std::string> paths;
  for (const RepoFile& file : listing->files) {
    check_inside(file.path);
    check(file.digest.empty() || is_digest(file.digest), "a digest is one or unstated");
    check(file.size >= -1, "a size is one or unstated");
    paths.push_back(file.path);
  }
  for (const char* file : {"", "Q4_K_M"}) {
    const auto needed = needed_files({.repo = "a/b", .file = file, .revision = {}}, paths);
    check(!needed.ok() || !needed->empty(), "a model needs files");
  }
}

}  // namespace
}  // namespace protean::hub

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace protean::hub;  // NOLINT(google-build-using-namespace)
  if (size == 0) {
    return 0;
  }
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      fuzz_listing(text);
      break;
    case 1:
      if (const auto names = files_of_index(text); names.ok()) {
        for (const std::string& name : *names) {
          check_inside(name);
        }
      }
      break;
    case 2:
      if (const auto name = parse_model_name(text); name.ok()) {
        protean::check(to_string(*name) == text, "a name is written as it is read");
      }
      break;
    default:
      if (const auto url = resolve_location(*parse_web_url("https://hub.test/a"), text); url.ok()) {
        protean::check(url->target.find_first_of("\r\n ") == std::string::npos &&
                           url->host_header.find_first_of("\r\n ") == std::string::npos,
                       "a location adds no line to a request");
      }
  }
  return 0;
}
