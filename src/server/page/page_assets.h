#pragma once

#include <span>
#include <string_view>

namespace protean {

// A file of the web pages, as web/ builds it.
struct PageAsset {
  std::string_view path;  // "index.html", "assets/index-Bx3f.js"; assets never change under a name
  std::string_view content_type;
  std::string_view hash;  // hash of the content, for ETag
  bool of_chat = false;   // the chat loads it
  bool of_dashboard = false;
  std::string_view plain;
  std::string_view gzip;
};

// Returns all files; none if the program was built with -DPROTEAN_WEB=OFF.
std::span<const PageAsset> page_assets();

}  // namespace protean
