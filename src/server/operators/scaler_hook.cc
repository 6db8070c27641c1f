#include "server/operators/scaler_hook.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "http/resume.h"
#include "hub/web_url.h"

namespace protean {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kLongestPause{30'000};

}  // namespace

Status ScalerHook::check_url(const std::string& url) {
  const auto parsed = hub::parse_web_url(url);
  return parsed.ok() ? Status()
                     : make_error(ErrorCode::kInvalidArgument,
                                  "--scaler-url {}: give an address like "
                                  "http://127.0.0.1:9000/scale",
                                  parsed.error().message);
}

ScalerHook::ScalerHook(Setting setting)
    : setting_(std::move(setting)),
      client_(io_, {}, setting_.patience),
      thread_([this] { io_.run(); }) {}

ScalerHook::~ScalerHook() {
  asio::post(io_, [this] {
    closing_ = true;
    client_.close();
    for (auto& [model, signal] : signals_) {
      signal.pause.cancel();
    }
  });
  keeps_running_.reset();
  thread_.join();
}

void ScalerHook::tell(const std::string& model, const ReplicasWanted& wanted,
                      std::int64_t unix_time_s) {
  asio::post(io_, [this, model, wanted, unix_time_s] { take(model, wanted, unix_time_s); });
}

void ScalerHook::take(const std::string& model, const ReplicasWanted& wanted,
                      std::int64_t unix_time_s) {
  const bool first = !signals_.contains(model);
  if (first && wanted.serving == wanted.wanted) {
    return;
  }
  Signal& signal = signals_.try_emplace(model, io_).first->second;
  signal.body = boost::json::serialize(boost::json::object{{"model", model},
                                                           {"replicas", wanted.serving},
                                                           {"replicas_wanted", wanted.wanted},
                                                           {"at", unix_time_s}});
  if (!signal.sending && !closing_) {
    signal.sending = true;
    asio::co_spawn(io_, send(signal), asio::detached);
  }
}

// Sends the latest number until the scaler has it.
asio::awaitable<void> ScalerHook::send(Signal& signal) {
  auto pause = setting_.first_pause;
  while (!signal.body.empty() && !closing_) {
    const std::string body = signal.body;
    const bool done = co_await post(body);
    if (done) {
      pause = setting_.first_pause;
      if (signal.body == body) {
        signal.body.clear();
      }
    } else if (!closing_) {
      signal.pause.expires_after(pause);
      co_await signal.pause.async_wait(kResume);
      pause = std::min(2 * pause, kLongestPause);
    }
  }
  signal.sending = false;
}

// Returns true if there is nothing to be gained by another try.
asio::awaitable<bool> ScalerHook::post(std::string body) {
  const hub::WebClient::BodySink sink = [](const ResponseReader&, std::string_view) {
    return Status();
  };
  hub::WebRequest request{.url = setting_.url, .token = {}, .json = std::move(body)};
  const auto answer = co_await client_.send(std::move(request), sink);
  if (closing_) {
    co_return false;
  }
  if (!answer.ok()) {
    co_return gives_up(answer.error().code != ErrorCode::kUnavailable, answer.error().message);
  }
  if (answer->status() / 100 != 2) {
    co_return gives_up(!hub::is_temporary(answer->status()),
                       fmt::format("{} answers {}", answer->url.host_header, answer->status()));
  }
  if (std::exchange(failing_, false)) {
    log::info("the scaler takes numbers of replicas again");
  }
  co_return true;
}

// Logs the first failure of several, and each number that is dropped.
bool ScalerHook::gives_up(bool drops, const std::string& why) {
  const bool failed_before = std::exchange(failing_, true);
  if (drops) {
    log::warning("the scaler does not take a number of replicas, which is dropped: {}", why);
  } else if (!failed_before) {
    log::warning("the scaler did not take a number of replicas, which is sent again: {}", why);
  }
  return drops;
}

}  // namespace protean
