#include "hub/repo_listing.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstddef>
#include <set>

#include "hub/model_name.h"

namespace protean::hub {
namespace {

namespace json = boost::json;

constexpr std::size_t kLongestPath = 1024;
constexpr std::size_t kLongestPathPart = 255;
constexpr std::size_t kMostFiles = 100'000;

Error no_listing(std::string_view why) {
  return make_error(ErrorCode::kCorrupt, "the hub's listing cannot be read: {}", why);
}

std::string text_of(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  const json::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? "" : std::string(text->data(), text->size());
}

std::int64_t size_of(const json::object& object) {
  const json::value* value = object.if_contains("size");
  const std::int64_t* size = value == nullptr ? nullptr : value->if_int64();
  return size == nullptr || *size < 0 ? -1 : *size;
}

// Text for a message: control characters are replaced, and what is too long is cut.
std::string shown(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }, '?');
  return text.size() <= 100 ? text : text.substr(0, 100) + "...";
}

Result<RepoFile> parse_file(const json::value& value) {
  const json::object* entry = value.if_object();
  if (entry == nullptr) {
    return no_listing("a file is not an object");
  }
  RepoFile file{.path = text_of(*entry, "rfilename")};
  if (!is_safe_path(file.path)) {
    return make_error(ErrorCode::kCorrupt,
                      "the hub lists a file '{}', whose path is not one inside of a folder",
                      shown(file.path));
  }
  file.size = size_of(*entry);
  file.digest = text_of(*entry, "blobId");
  const json::value* lfs = entry->if_contains("lfs");
  if (const json::object* large = lfs == nullptr ? nullptr : lfs->if_object()) {
    file.size = size_of(*large);
    file.digest = text_of(*large, "sha256");
    if (file.digest.empty()) {
      file.digest = text_of(*large, "oid");
    }
  }
  if (!is_digest(file.digest)) {
    file.digest.clear();
  }
  return file;
}

}  // namespace

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kLongestPath) {
    return false;
  }
  const bool plain = std::none_of(path.begin(), path.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == 0x7f || c == '\\';
  });
  while (plain) {
    const std::size_t end = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, end);
    if (part.empty() || part == "." || part == ".." || part.size() > kLongestPathPart) {
      return false;
    }
    if (end == path.size()) {
      return true;
    }
    path.remove_prefix(end + 1);
  }
  return false;
}

bool is_digest(std::string_view text) {
  return (text.size() == 40 || text.size() == 64) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Result<RepoListing> parse_repo_listing(std::string_view text) {
  boost::system::error_code failed;
  const json::value document = json::parse({text.data(), text.size()}, failed);
  if (failed) {
    return no_listing(failed.message());
  }
  const json::object* object = document.if_object();
  const json::value* siblings = object == nullptr ? nullptr : object->if_contains("siblings");
  const json::array* files = siblings == nullptr ? nullptr : siblings->if_array();
  if (files == nullptr) {
    return no_listing("it has no array 'siblings'");
  }
  RepoListing listing{.commit = text_of(*object, "sha"), .files = {}};
  if (!is_commit(listing.commit)) {
    return no_listing("its 'sha' is not a commit");
  }
  if (files->size() > kMostFiles) {
    return no_listing("it has more than 100000 files");
  }
  std::set<std::string> paths;
  for (const json::value& value : *files) {
    auto file = parse_file(value);
    if (!file.ok()) {
      return file.error();
    }
    if (!paths.insert(file->path).second) {
      return no_listing("it has the file '" + shown(file->path) + "' twice");
    }
    listing.files.push_back(*std::move(file));
  }
  return listing;
}

}  // namespace protean::hub
