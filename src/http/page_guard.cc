#include "http/page_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <utility>

#include "base/same_letters.h"

namespace protean {
namespace {

bool is_address(std::string_view host) {
  boost::system::error_code ec;
  boost::asio::ip::make_address(host, ec);
  return !ec;
}

// Returns "chat.example.org:8000" of "https://chat.example.org:8000".
std::string_view authority_of(std::string_view origin) {
  const std::size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? std::string_view() : origin.substr(scheme + 3);
}

}  // namespace

bool is_loopback(const std::string& host) {
  boost::system::error_code ec;
  const auto address = boost::asio::ip::make_address(host, ec);
  return host == "localhost" || (!ec && address.is_loopback());
}

std::string_view host_of(std::string_view header) {
  if (header.starts_with('[')) {
    return header.substr(1, header.find(']') - 1);
  }
  return header.substr(0, header.find(':'));
}

PageGuard::PageGuard(Setting setting) : setting_(std::move(setting)) {}

bool PageGuard::knows(std::string_view host) const {
  if (host.ends_with('.')) {  // the root of the name's domain, which may be left out
    host.remove_suffix(1);
  }
  const auto is_host = [&](const std::string& name) {
    return name == "*" || same_letters(name, host);
  };
  constexpr std::string_view kBelowLocalhost = ".localhost";  // browsers never look these up
  return same_letters(host, "localhost") || is_address(host) ||
         (host.size() > kBelowLocalhost.size() &&
          same_letters(host.substr(host.size() - kBelowLocalhost.size()), kBelowLocalhost)) ||
         std::any_of(setting_->names.begin(), setting_->names.end(), is_host);
}

std::optional<ApiError> PageGuard::refuse(const HttpCall& call) const {
  if (!setting_) {
    return std::nullopt;
  }
  const std::string_view host = call.header("host");
  const std::string_view path = std::string_view(call.target).substr(0, call.target.find('?'));
  const std::vector<std::string>& open = setting_->any_name;
  if (std::find(open.begin(), open.end(), path) == open.end() && !host.empty() &&
      !knows(host_of(host))) {  // browsers always send one, HTTP/1.0 need not
    return ApiError{.status = 403,
                    .message = fmt::format("\"{}\" is not a name of this server: ask for it by its "
                                           "address or as localhost, or start it with {}",
                                           printable(host_of(host)), setting_->remedy)};
  }
  const std::string_view origin = call.header("origin");
  if (!origin.empty() && !setting_->origins.admits(origin) &&
      (host.empty() || !same_letters(authority_of(origin), host))) {
    return ApiError{.status = 403,
                    .message = fmt::format("web pages of {} may not use this server: start it "
                                           "with {}",
                                           printable(origin), setting_->remedy)};
  }
  return std::nullopt;
}

}  // namespace protean
