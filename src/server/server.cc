#include "server/server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/body_budget.h"
#include "server/cors.h"
#include "server/listener.h"

namespace protean {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::chrono::seconds kLastWords{1};  // to write an error into a stream that is cut

// Batches on their way from the engine's thread to the io thread.
class Mailbox {
 public:
  // True when the reader has to be woken: it was empty.
  bool put(OutputBatch batch) {
    const std::lock_guard lock(mutex_);
    batches_.push_back(std::move(batch));
    return batches_.size() == 1;
  }
  std::vector<OutputBatch> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(batches_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<OutputBatch> batches_;
};

}  // namespace

// Everything but the mailbox and the port belongs to the io thread.
class Server::Impl {
 public:
  Impl(const ServerOptions& options, ServedModel model, MetricsLabels labels,
       Environment environment, BoundedQueue<Event>& inbox)
      : options_(options),
        random_(environment.random),
        service_(options.service, std::move(model), std::move(labels), std::move(environment),
                 inbox),
        bodies_(options.http.max_inflight_body_bytes),
        public_(io_, {.handler = service_,
                      .limits = options_.http,
                      .random = random_,
                      .cors = cors_,
                      .bodies = bodies_,
                      .on_idle = [this] { close_when_drained(); }}),
        drain_(io_) {}

  Status listen();
  int port() const { return public_.port(); }
  void run();
  void set_ready();
  void stop();
  void reload_tls();
  void emit(OutputBatch batch);

 private:
  void begin_drain();
  void cut_answers();
  void close_when_drained();
  void close_all();
  void deliver();

  const ServerOptions options_;
  const RandomSource random_;
  Service service_;
  Mailbox mailbox_;
  asio::io_context io_{1};
  Cors cors_;  // fixed by listen()
  BodyBudget bodies_;
  Listener public_;
  asio::steady_timer drain_;  // the drain's deadline
};

Status Server::Impl::listen() {
  auto cors = Cors::allow(options_.allow_origins);
  if (!cors.ok()) {
    return cors.error();
  }
  cors_ = *std::move(cors);
  if (options_.tls.enabled()) {
    const auto tls = load_tls(options_.tls);
    if (!tls.ok()) {
      return tls.error();
    }
    public_.use_tls(*tls);
  }
  return public_.listen(options_.host, options_.port, "--port");
}

void Server::Impl::run() {
  io_.run();
}

void Server::Impl::reload_tls() {
  asio::post(io_, [this] {
    const auto tls = load_tls(options_.tls);
    if (!tls.ok()) {
      log::error("{}; the former certificate stays in use", tls.error().message);
      return;
    }
    public_.use_tls(*tls);
    log::info("TLS certificate and key read anew");
  });
}

void Server::Impl::set_ready() {
  asio::post(io_, [this] {
    if (service_.state() == ServerState::kLoading) {
      service_.set_state(ServerState::kReady);
    }
  });
}

void Server::Impl::stop() {
  asio::post(io_, [this] {
    if (service_.state() == ServerState::kDraining) {
      cut_answers();
    } else {
      begin_drain();
    }
  });
}

void Server::Impl::begin_drain() {
  service_.set_state(ServerState::kDraining);
  public_.close_receiving();
  drain_.expires_after(std::chrono::milliseconds(options_.drain_timeout_ms));
  drain_.async_wait([this](const error_code& ec) {
    if (!ec) {
      cut_answers();
    }
  });
  close_when_drained();
}

void Server::Impl::cut_answers() {
  service_.cancel_all({.status = 503, .message = "the server is shutting down"});
  drain_.expires_after(kLastWords);
  drain_.async_wait([this](const error_code& ec) {
    if (!ec) {
      close_all();
    }
  });
  close_when_drained();
}

void Server::Impl::close_when_drained() {
  if (service_.state() == ServerState::kDraining && !public_.busy()) {
    close_all();
  }
}

void Server::Impl::close_all() {
  drain_.cancel();
  public_.close();
}

void Server::Impl::emit(OutputBatch batch) {
  if (mailbox_.put(std::move(batch))) {
    asio::post(io_, [this] { deliver(); });
  }
}

void Server::Impl::deliver() {
  for (const OutputBatch& batch : mailbox_.take()) {
    service_.deliver(batch);
  }
}

Server::Server(const ServerOptions& options, ServedModel model, MetricsLabels labels,
               Environment environment, BoundedQueue<Event>& inbox)
    : impl_(std::make_unique<Impl>(options, std::move(model), std::move(labels),
                                   std::move(environment), inbox)) {}
Server::~Server() = default;

Status Server::listen() {
  return impl_->listen();
}
int Server::port() const {
  return impl_->port();
}
void Server::run() {
  impl_->run();
}
void Server::set_ready() {
  impl_->set_ready();
}
void Server::stop() {
  impl_->stop();
}
void Server::reload_tls() {
  impl_->reload_tls();
}
void Server::emit(OutputBatch batch) {
  impl_->emit(std::move(batch));
}

}  // namespace protean
