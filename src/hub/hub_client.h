#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <unordered_set>

#include "base/result.h"
#include "hub/model_name.h"
#include "hub/repo_listing.h"
#include "hub/settings.h"
#include "hub/web_client.h"

namespace protean::hub {

// Asks a hub about one model. Requests that may succeed later are tried again, at growing
// distances or when the hub says. Used on the thread of its io_context.
class HubClient {
 public:
  // `note` is told why a request is tried again; it may be empty. The settings and the name must
  // outlive the client.
  HubClient(boost::asio::io_context& io, const HubSettings& settings, const ModelName& name,
            std::function<void(const std::string&)> note);

  boost::asio::awaitable<Result<RepoListing>> list();
  // Returns the size and digest of a file, which a listing may leave out.
  boost::asio::awaitable<Result<RepoFile>> describe(std::string commit, std::string path);
  // Asks once for the bytes of a file from `from_byte` on.
  boost::asio::awaitable<Result<WebAnswer>> read(const std::string& commit, const std::string& path,
                                                 std::int64_t from_byte,
                                                 const WebClient::BodySink& sink);
  Error explain(const WebAnswer& answer) const;

  // Waits after the given number of tries, at least for `asked`, and notes why. Returns false if
  // there have been enough tries.
  boost::asio::awaitable<bool> pause(int tries, std::chrono::seconds asked, std::string why);
  boost::asio::awaitable<void> sleep(std::chrono::milliseconds time);

  // Ends all requests and waits; later ones fail at once.
  void close();

 private:
  // Sends a request for a text until it is answered with a 2xx status, or a redirect that the
  // request does not follow.
  boost::asio::awaitable<Result<WebAnswer>> ask(WebRequest request, std::string& text);
  std::string file_url(const std::string& commit, const std::string& path) const;

  boost::asio::io_context& io_;
  const HubSettings& settings_;
  const ModelName& name_;
  std::function<void(const std::string&)> note_;
  WebClient web_;
  std::minstd_rand random_{std::random_device{}()};
  std::unordered_set<boost::asio::steady_timer*> sleepers_;
  bool closed_ = false;
};

}  // namespace protean::hub
