#include "hub/hub_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "http/resume.h"
#include "hub/hub_answer.h"
#include "hub/web_url.h"

namespace protean::hub {
namespace {

namespace asio = boost::asio;

constexpr int kMostTries = 6;
constexpr std::chrono::seconds kLongestPause{300};
constexpr std::size_t kLongestText = std::size_t{64} << 20;

}  // namespace

HubClient::HubClient(asio::io_context& io, const HubSettings& settings, const ModelName& name,
                     std::function<void(const std::string&)> note)
    : io_(io),
      settings_(settings),
      name_(name),
      note_(std::move(note)),
      web_(io, settings.proxies, settings.patience) {}

asio::awaitable<Result<RepoListing>> HubClient::list() {
  WebRequest request;
  request.url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", settings_.endpoint,
                            encode_path(name_.repo), encode_path_word(name_.branch()));
  request.token = settings_.token;
  std::string text;
  const auto answer = co_await ask(request, text);
  if (!answer.ok()) {
    co_return answer.error();
  }
  auto listing = parse_repo_listing(text);
  if (!listing.ok()) {
    co_return make_error(listing.error().code, "{} at {}: {}", name_.repo, settings_.endpoint,
                         listing.error().message);
  }
  co_return listing;
}

asio::awaitable<Result<WebAnswer>> HubClient::ask(WebRequest request, std::string& text) {
  for (int tries = 1; true; ++tries) {
    text.clear();
    const auto keep = [&](const ResponseReader&, std::string_view bytes) -> Status {
      text += bytes;
      return text.size() <= kLongestText
                 ? Status()
                 : make_error(ErrorCode::kCorrupt, "{}: an answer is longer than 64 MiB",
                              settings_.endpoint);
    };
    const WebClient::BodySink sink = keep;
    const WebRequest copy = request;
    auto answer = co_await web_.send(copy, sink);
    const bool other_place =
        answer.ok() && answer->status() / 100 == 3 && !request.follow_to_other_origins;
    if (answer.ok() && (answer->status() / 100 == 2 || other_place)) {
      co_return answer;
    }
    Error why = answer.ok() ? explain(*answer) : answer.error();
    const std::chrono::seconds asked = answer.ok() ? asked_pause(*answer) : std::chrono::seconds(0);
    if (why.code != ErrorCode::kUnavailable) {
      co_return why;
    }
    const std::string text_of_why = why.message;
    const bool again = co_await pause(tries, asked, text_of_why);
    if (!again) {
      co_return why;
    }
  }
}

asio::awaitable<Result<RepoFile>> HubClient::describe(std::string commit, std::string path) {
  WebRequest request;
  request.url = file_url(commit, path);
  request.token = settings_.token;
  request.head = true;
  request.follow_to_other_origins = false;
  std::string text;
  const auto answer = co_await ask(request, text);
  if (!answer.ok()) {
    co_return answer.error();
  }
  co_return complete_file(*answer, path, commit);
}

asio::awaitable<bool> HubClient::pause(int tries, std::chrono::seconds asked, std::string why) {
  if (tries >= kMostTries || asked > kLongestPause || closed_) {
    co_return false;
  }
  const auto own = settings_.first_pause * (1 << (tries - 1));
  const std::chrono::milliseconds jitter(random_() % (1 + own.count() / 4));
  const auto time = std::max<std::chrono::milliseconds>(own + jitter, asked);
  if (note_) {
    note_(
        fmt::format("{}; trying again in {:.1f} s", why, static_cast<double>(time.count()) / 1000));
  }
  co_await sleep(time);
  co_return !closed_;
}

asio::awaitable<void> HubClient::sleep(std::chrono::milliseconds time) {
  asio::steady_timer timer(io_, time);
  sleepers_.insert(&timer);
  co_await timer.async_wait(kResume);
  sleepers_.erase(&timer);
}

std::string HubClient::file_url(const std::string& commit, const std::string& path) const {
  return fmt::format("{}/{}/resolve/{}/{}", settings_.endpoint, encode_path(name_.repo), commit,
                     encode_path(path));
}

asio::awaitable<Result<WebAnswer>> HubClient::read(const std::string& commit,
                                                   const std::string& path, std::int64_t from_byte,
                                                   const WebClient::BodySink& sink) {
  WebRequest request;
  request.url = file_url(commit, path);
  request.token = settings_.token;
  request.from_byte = from_byte;
  co_return co_await web_.send(request, sink);
}

Error HubClient::explain(const WebAnswer& answer) const {
  return explain_refusal(answer, settings_, name_);
}

void HubClient::close() {
  closed_ = true;
  web_.close();
  for (asio::steady_timer* timer : sleepers_) {
    timer->cancel();
  }
}

}  // namespace protean::hub
