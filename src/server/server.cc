#include "server/server.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "server/connection.h"

namespace protean {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kResume = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds kAcceptRetry{100};
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
        acceptor_(io_),
        room_(io_),
        drain_(io_) {}

  Status listen();
  int port() const { return port_; }
  void run();
  void set_ready();
  void stop();
  void emit(OutputBatch batch);

 private:
  Status open(const tcp::endpoint& endpoint);
  asio::awaitable<void> accept();
  void serve(tcp::socket socket);
  void ended(const std::shared_ptr<Connection>& connection, const std::exception_ptr& failure);
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
  tcp::acceptor acceptor_;
  int port_ = 0;              // fixed by listen()
  asio::steady_timer room_;   // cancelled when a connection ends
  asio::steady_timer drain_;  // the drain's deadline
  std::unordered_set<std::shared_ptr<Connection>> connections_;
};

Status Server::Impl::listen() {
  if (options_.host.empty()) {  // the resolver would take any address for it
    return make_error(ErrorCode::kInvalidArgument,
                      "the host to listen on is empty: give an address, such as 127.0.0.1 for this "
                      "machine only or 0.0.0.0 for all networks");
  }
  error_code ec;
  tcp::resolver resolver(io_);
  const auto found =
      resolver.resolve(options_.host, std::to_string(options_.port), tcp::resolver::passive, ec);
  if (ec) {
    return make_error(ErrorCode::kInvalidArgument, "cannot resolve the host \"{}\": {}",
                      options_.host, ec.message());
  }
  Status opened;
  for (const auto& entry : found) {  // "localhost" may have an address this machine lacks
    opened = open(entry.endpoint());
    if (opened.ok()) {
      asio::co_spawn(io_, accept(), [](const std::exception_ptr& failure) {
        check(failure == nullptr, "accepting connections does not throw");
      });
      return opened;
    }
  }
  return opened;
}

Status Server::Impl::open(const tcp::endpoint& endpoint) {
  error_code ec;
  const auto attempt = [&](auto step) {
    if (!ec) {
      step();
    }
  };
  acceptor_.open(endpoint.protocol(), ec);
  attempt([&] { acceptor_.set_option(tcp::acceptor::reuse_address(true), ec); });
  if (endpoint.protocol() == tcp::v6()) {
    attempt([&] { acceptor_.set_option(asio::ip::v6_only(false), ec); });
  }
  attempt([&] { acceptor_.bind(endpoint, ec); });
  attempt([&] { acceptor_.listen(asio::socket_base::max_listen_connections, ec); });
  if (!ec) {
    port_ = acceptor_.local_endpoint(ec).port();
    return {};
  }
  error_code ignored;
  acceptor_.close(ignored);
  if (ec == asio::error::address_in_use) {
    return make_error(ErrorCode::kUnavailable,
                      "port {} on {} is taken by another program: stop it or choose another --port",
                      options_.port, options_.host);
  }
  return make_error(ErrorCode::kInvalidArgument, "cannot listen on {} port {}: {}", options_.host,
                    options_.port, ec.message());
}

void Server::Impl::run() {
  io_.run();
}

asio::awaitable<void> Server::Impl::accept() {
  bool failing = false;  // said once, not at every attempt
  while (acceptor_.is_open()) {
    if (std::ssize(connections_) >= options_.http.max_connections) {
      room_.expires_at(asio::steady_timer::time_point::max());
      co_await room_.async_wait(kResume);
      continue;
    }
    auto [ec, socket] = co_await acceptor_.async_accept(kResume);
    if (!ec) {
      failing = false;
      serve(std::move(socket));
    } else if (acceptor_.is_open() && ec != asio::error::connection_aborted) {
      if (!std::exchange(failing, true)) {
        log::warning("cannot accept connections: {}", ec.message());  // out of file descriptors
      }
      room_.expires_after(kAcceptRetry);
      co_await room_.async_wait(kResume);
    }
  }
}

void Server::Impl::serve(tcp::socket socket) {
  const Connection::Setting setting{
      .service = service_, .limits = options_.http, .random = random_, .on_idle = [this] {
        close_when_drained();
      }};
  auto connection = std::make_shared<Connection>(std::move(socket), setting);
  connections_.insert(connection);
  asio::co_spawn(io_, connection->run(), [this, connection](const std::exception_ptr& failure) {
    ended(connection, failure);
  });
}

void Server::Impl::ended(const std::shared_ptr<Connection>& connection,
                         const std::exception_ptr& failure) {
  if (failure != nullptr) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      log::error("a connection failed: {}", error.what());
    }
  }
  connections_.erase(connection);
  room_.cancel();
  close_when_drained();
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
  error_code ignored;
  acceptor_.close(ignored);
  room_.cancel();
  for (const auto& connection : connections_) {
    if (connection->receiving()) {
      connection->close();
    }
  }
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
  if (service_.state() != ServerState::kDraining) {
    return;
  }
  for (const auto& connection : connections_) {
    if (connection->busy()) {
      return;
    }
  }
  close_all();
}

void Server::Impl::close_all() {
  drain_.cancel();
  for (const auto& connection : connections_) {
    connection->close();
  }
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
void Server::emit(OutputBatch batch) {
  impl_->emit(std::move(batch));
}

}  // namespace protean
