#include "server/server.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/host_name.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "http/body_budget.h"
#include "http/cors.h"
#include "http/listener.h"
#include "http/page_guard.h"
#include "server/background_work.h"
#include "server/models.h"
#include "server/operators/admin.h"
#include "server/operators/tracer.h"

namespace protean {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::chrono::seconds kLastWords{1};  // for sending errors to streams before closing

// Passes batches from the engines' threads to the io thread.
class Mailbox {
 public:
  struct Letter {
    Service* to;
    OutputBatch batch;
  };

  // Returns true if the mailbox was empty, so that the reader must be woken.
  bool put(Letter letter) {
    const std::lock_guard lock(mutex_);
    letters_.push_back(std::move(letter));
    return letters_.size() == 1;
  }
  std::vector<Letter> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(letters_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<Letter> letters_;
};

}  // namespace

// Everything except the mailbox and the ports' numbers belongs to the io thread.
class Server::Impl {
 public:
  Impl(const ServerOptions& options, std::vector<HostedModel> models, const std::string& version,
       Environment environment)
      : options_(options),
        clock_(environment.clock),
        random_(environment.random),
        hosts_(hosts(std::move(models), version, with_aside(std::move(environment)))),
        models_(services(), options.keys),
        bodies_(options.http.max_inflight_body_bytes),
        admin_(models_, {.keys = options.admin.keys, .drain = [this] { stop(); }}),
        public_(io_, {.handler = models_,
                      .limits = options_.http,
                      .random = random_,
                      .cors = cors_,
                      .pages = pages_,
                      .bodies = bodies_,
                      .on_idle = [this] { close_when_drained(); }}),
        operators_(io_, {.handler = admin_,
                         .limits = options_.http,
                         .random = random_,
                         .cors = no_origins_,
                         .pages = operator_pages_,
                         .bodies = bodies_,
                         .on_idle = [this] { close_when_drained(); }}),
        drain_(io_),
        beat_(io_),
        watch_(io_) {}

  Status listen();
  int port() const { return public_.port(); }
  int admin_port() const { return operators_.port(); }
  void run();
  void set_ready();
  void stop();
  void reload_tls();
  TokenSink& sink(std::size_t model) { return *hosts_.at(model); }

 private:
  // The service of a model, and where its engines emit.
  struct Host final : TokenSink {
    Host(Impl& to, HostedModel hosted, const std::string& version, const Environment& environment)
        : impl(to),
          service(hosted.limits, hosted.model,
                  {.model_name = hosted.model.names.front(), .version = version}, environment,
                  hosted.inbox) {}
    void emit(OutputBatch batch) override { impl.post({&service, std::move(batch)}); }

    Impl& impl;
    Service service;
  };

  std::vector<std::unique_ptr<Host>> hosts(std::vector<HostedModel> models,
                                           const std::string& version,
                                           const Environment& environment);
  std::vector<Service*> services() const;
  void post(Mailbox::Letter letter);
  Status listen_public();
  Status listen_admin();
  Status start_tracing();
  void beat();
  Environment with_aside(Environment environment);
  void begin_drain();
  void cut_answers();
  void close_when_drained();
  void close_all();
  void deliver();
  void await_watch_due();

  const ServerOptions options_;
  const Clock clock_;
  const RandomSource random_;
  std::vector<std::unique_ptr<Host>> hosts_;  // of each model
  Models models_;
  Mailbox mailbox_;
  asio::io_context io_{1};
  Cors cors_;        // fixed by listen()
  PageGuard pages_;  // fixed by listen()
  const Cors no_origins_;
  PageGuard operator_pages_;  // fixed by listen()
  BodyBudget bodies_;
  Admin admin_;
  std::unique_ptr<Tracer> tracer_;  // null: traces are not sent
  Listener public_;
  Listener operators_;
  asio::steady_timer drain_;  // the drain's deadline
  asio::steady_timer beat_;
  asio::steady_timer watch_;  // when operators that watch are due to be told
  // Declared last: destroyed before everything that its jobs use.
  BackgroundWork background_{
      [this](BackgroundWork::Done done) { asio::post(io_, std::move(done)); }};
};

Environment Server::Impl::with_aside(Environment environment) {
  environment.aside = [this](BackgroundWork::Job job) {
    return background_.try_run(std::move(job));
  };
  return environment;
}

std::vector<std::unique_ptr<Server::Impl::Host>> Server::Impl::hosts(
    std::vector<HostedModel> models, const std::string& version, const Environment& environment) {
  std::vector<std::unique_ptr<Host>> made;
  for (HostedModel& model : models) {
    made.push_back(std::make_unique<Host>(*this, std::move(model), version, environment));
  }
  return made;
}

std::vector<Service*> Server::Impl::services() const {
  std::vector<Service*> all;
  for (const auto& host : hosts_) {
    all.push_back(&host->service);
  }
  return all;
}

Status Server::Impl::listen() {
  if (options_.tls.enabled()) {
    const auto tls = load_tls(options_.tls);
    if (!tls.ok()) {
      return tls.error();
    }
    public_.use_tls(*tls);
    operators_.use_tls(*tls);
  }
  for (const auto step : {&Impl::start_tracing, &Impl::listen_admin}) {
    if (Status done = (this->*step)(); !done.ok()) {
      return done;
    }
  }
  if (options_.heartbeat.interval_ms > 0) {
    beat();
  }
  return listen_public();
}

Status Server::Impl::listen_public() {
  auto cors = Cors::allow(options_.allow_origins);
  if (!cors.ok()) {
    return cors.error();
  }
  cors_ = *std::move(cors);
  if (options_.keys.empty()) {
    std::vector<std::string> names;
    for (const std::string& name : options_.allowed_hosts) {
      names.emplace_back(host_of(name));
    }
    names.push_back(options_.host);
    error_code ec;
    const std::string own = asio::ip::host_name(ec);
    names.push_back(own);
    names.push_back(own + ".local");  // as multicast DNS has it
    pages_ = PageGuard({.origins = cors_,
                        .names = std::move(names),
                        .remedy = "--allow-origin, --allowed-hosts or an --api-key"});
  }
  if (Status listening = public_.listen(options_.host, options_.port, "--port"); !listening.ok()) {
    return listening;
  }
  if (options_.keys.empty() && !is_loopback(options_.host)) {
    log::warning(
        "--host {} can be reached from other machines, and without an --api-key anyone there may "
        "use this server",
        options_.host);
  }
  return {};
}

Status Server::Impl::listen_admin() {
  const AdminOptions& admin = options_.admin;
  if (admin.port < 0) {
    return {};
  }
  if (admin.keys.empty() && !is_loopback(admin.host)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--admin-host {} can be reached from other machines: give an --admin-key, or "
                      "use 127.0.0.1",
                      admin.host);
  }
  if (admin.keys.empty()) {
    operator_pages_ = PageGuard({.origins = {}, .names = {}, .remedy = "an --admin-key"});
  }
  return operators_.listen(admin.host, admin.port, "--admin-port");
}

Status Server::Impl::start_tracing() {
  if (options_.otlp_endpoint.empty()) {
    return {};
  }
  const auto endpoint = parse_otlp_endpoint(options_.otlp_endpoint);
  if (!endpoint.ok()) {
    return endpoint.error();
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  tracer_ = std::make_unique<Tracer>(Tracer::Setting{
      .endpoint = *endpoint,
      .version = models_.services().front()->version(),
      .unix_offset_ns =
          std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() - clock_(),
      .random = random_});
  for (Service* service : models_.services()) {
    service->on_answered = [this](const AnswerRecord& record) {
      log_answer(record);
      tracer_->add(record);
    };
  }
  return {};
}

void Server::Impl::beat() {
  options_.heartbeat.beat();
  beat_.expires_after(std::chrono::milliseconds(options_.heartbeat.interval_ms));
  beat_.async_wait([this](const error_code& ec) {
    if (!ec) {
      beat();
    }
  });
}

void Server::Impl::run() {
  io_.run();
}

void Server::Impl::reload_tls() {
  auto tls = load_tls(options_.tls);
  if (!tls.ok()) {
    log::error("{}; the former certificate stays in use", tls.error().message);
    return;
  }
  asio::post(io_, [this, fresh = *std::move(tls)] {
    public_.use_tls(fresh);
    operators_.use_tls(fresh);
    log::info("read the TLS certificate and key again");
  });
}

void Server::Impl::set_ready() {
  asio::post(io_, [this] {
    if (models_.state() == ServerState::kLoading) {
      models_.set_state(ServerState::kReady);
    }
  });
}

void Server::Impl::stop() {
  asio::post(io_, [this] {
    if (models_.state() == ServerState::kDraining) {
      cut_answers();
    } else {
      begin_drain();
    }
  });
}

void Server::Impl::begin_drain() {
  models_.set_state(ServerState::kDraining);
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
  for (Service* service : models_.services()) {
    service->cancel_all({.status = 503, .message = "the server is shutting down"});
  }
  drain_.expires_after(kLastWords);
  drain_.async_wait([this](const error_code& ec) {
    if (!ec) {
      close_all();
    }
  });
  close_when_drained();
}

void Server::Impl::close_when_drained() {
  if (models_.state() == ServerState::kDraining && !public_.busy() && !operators_.busy()) {
    close_all();
  }
}

void Server::Impl::close_all() {
  drain_.cancel();
  beat_.cancel();
  watch_.cancel();
  public_.close();
  operators_.close();
}

void Server::Impl::post(Mailbox::Letter letter) {
  if (mailbox_.put(std::move(letter))) {
    asio::post(io_, [this] { deliver(); });
  }
}

void Server::Impl::deliver() {
  for (const Mailbox::Letter& letter : mailbox_.take()) {
    letter.to->deliver(letter.batch);
  }
  await_watch_due();
}

// The timer's expiry is in the future while it is awaited.
void Server::Impl::await_watch_due() {
  std::optional<TimeNs> due_ns;
  for (const Service* service : models_.services()) {
    const auto next_ns = service->watch_due_ns();
    due_ns = due_ns && next_ns ? std::min(*due_ns, *next_ns) : next_ns ? next_ns : due_ns;
  }
  if (!due_ns || watch_.expiry() > std::chrono::steady_clock::now()) {
    return;
  }
  watch_.expires_after(std::chrono::nanoseconds(std::max<TimeNs>(*due_ns - clock_(), 0)));
  watch_.async_wait([this](const error_code& ec) {
    if (!ec) {
      for (Service* service : models_.services()) {
        service->pass_time();
      }
      await_watch_due();
    }
  });
}

Server::Server(const ServerOptions& options, std::vector<HostedModel> models,
               const std::string& version, Environment environment)
    : impl_(std::make_unique<Impl>(options, std::move(models), version, std::move(environment))) {}
Server::~Server() = default;

Status Server::listen() {
  return impl_->listen();
}
int Server::port() const {
  return impl_->port();
}
int Server::admin_port() const {
  return impl_->admin_port();
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
TokenSink& Server::sink(std::size_t model) {
  return impl_->sink(model);
}

}  // namespace protean
