#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "base/result.h"
#include "contract/replicas_wanted.h"
#include "hub/web_client.h"

namespace protean {

// Tells a scaler how many replicas the models of a server want: posts
// {"model": "NAME", "replicas": 2, "replicas_wanted": 3, "at": 1790000000} to a URL whenever a
// number has changed, from a thread of its own. If the scaler does not answer, or is busy, it gets
// the latest number of each model again after a pause that doubles up to half a minute. A number
// that the scaler refuses is dropped.
class ScalerHook {
 public:
  struct Setting {
    std::string url;
    std::chrono::seconds patience{5};  // for a scaler that is silent
    std::chrono::milliseconds first_pause{1000};
  };

  // Fails if the URL is not an http or https one.
  static Status check_url(const std::string& url);

  explicit ScalerHook(Setting setting);
  // Ends what is being sent.
  ~ScalerHook();
  ScalerHook(const ScalerHook&) = delete;
  ScalerHook& operator=(const ScalerHook&) = delete;

  // Never waits. May be called from any thread. A first number that is no change is not sent.
  void tell(const std::string& model, const ReplicasWanted& wanted, std::int64_t unix_time_s);

 private:
  // The latest number of a model.
  struct Signal {
    explicit Signal(boost::asio::io_context& io) : pause(io) {}
    std::string body;  // empty: the scaler knows
    bool sending = false;
    boost::asio::steady_timer pause;
  };

  void take(const std::string& model, const ReplicasWanted& wanted, std::int64_t unix_time_s);
  boost::asio::awaitable<void> send(Signal& signal);
  boost::asio::awaitable<bool> post(std::string body);
  bool gives_up(bool drops, const std::string& why);

  const Setting setting_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> keeps_running_{
      io_.get_executor()};
  // The following belong to the thread.
  hub::WebClient client_;
  std::map<std::string, Signal> signals_;  // by model
  bool failing_ = false;                   // the log says so
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace protean
