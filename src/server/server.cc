#include "server/server.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/host_name.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "http/body_budget.h"
#include "http/cors.h"
#include "http/listener.h"
#include "http/page_guard.h"
#include "server/background_work.h"
#include "server/mailbox.h"
#include "server/models.h"
#include "server/operators/admin.h"
#include "server/operators/reports.h"
#include "server/residents.h"

namespace protean {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::chrono::seconds kLastWords{1};  // for sending errors to streams before closing

}  // namespace

// Everything except the mailbox and the ports' numbers belongs to the io thread.
class Server::Impl {
 public:
  Impl(const ServerOptions& options, std::vector<HostedModel> models, const std::string& version,
       Environment environment)
      : options_(options),
        version_(version),
        environment_(with_background(std::move(environment))),
        residents_(io_, hosts(std::move(models)), options.keys, environment_.clock),
        models_(residents_.models()),
        bodies_(options.http.max_inflight_body_bytes),
        admin_(models_, {.keys = options.admin.keys,
                         .drain = [this] { asio::post(io_, [this] { begin_drain(); }); },
                         .residents = residents_}),
        public_(io_, {.handler = models_,
                      .limits = options_.http,
                      .random = environment_.random,
                      .cors = cors_,
                      .pages = pages_,
                      .bodies = bodies_,
                      .on_idle = [this] { close_when_drained(); }}),
        operators_(io_, {.handler = admin_,
                         .limits = options_.http,
                         .random = environment_.random,
                         .cors = no_origins_,
                         .pages = operator_pages_,
                         .bodies = bodies_,
                         .on_idle = [this] { close_when_drained(); }}),
        drain_{asio::steady_timer(io_)},
        beat_(io_),
        watch_(io_) {}

  Status listen();
  int port() const { return public_.port(); }
  int admin_port() const { return operators_.port(); }
  void run();
  void set_ready(ModelLoader* loader);
  void fell_asleep(std::size_t model);
  void woke(std::size_t model, Status loaded, std::vector<Finished> ended);
  void stop();
  void reload_tls();
  std::shared_ptr<Host> host(HostedModel model);
  void tell(std::function<void(Residents&)> what);
  std::shared_ptr<TokenSink> sink(std::size_t model) { return residents_.sink(model); }
  std::optional<std::uint64_t> quiet() { return mailbox_.quiet(); }

 private:
  std::vector<std::shared_ptr<Host>> hosts(std::vector<HostedModel> models);
  void post(Mailbox::Letter letter);
  Status listen_public();
  Status listen_admin();
  Status start_reports();
  void beat();
  Environment with_background(Environment environment);
  void begin_drain();
  void cut_answers();
  void close_when_drained();
  void close_all();
  void deliver();
  void tell_scaler(const Service& service);
  void await_watch_due();

  const ServerOptions options_;
  const std::string version_;
  const Environment environment_;
  Mailbox mailbox_;
  asio::io_context io_{1};
  Residents residents_;
  Models& models_;
  Cors cors_;        // fixed by listen()
  PageGuard pages_;  // fixed by listen()
  const Cors no_origins_;
  PageGuard operator_pages_;  // fixed by listen()
  BodyBudget bodies_;
  Admin admin_;
  Reports reports_;
  Listener public_;
  Listener operators_;
  struct {
    asio::steady_timer deadline;
    bool stopped = false;  // stop() was called
  } drain_;
  asio::steady_timer beat_;
  asio::steady_timer watch_;  // when operators that watch are due to be told
  // Declared last: destroyed before everything that its jobs use.
  BackgroundWork background_{
      [this](BackgroundWork::Done done) { asio::post(io_, std::move(done)); }};
};

Environment Server::Impl::with_background(Environment environment) {
  environment.in_background = [this](BackgroundWork::Job job) {
    return background_.try_run(std::move(job));
  };
  return environment;
}

std::shared_ptr<Host> Server::Impl::host(HostedModel model) {
  auto made = std::make_shared<Host>(std::move(model), version_, environment_,
                                     [this](std::shared_ptr<Host> to, OutputBatch batch) {
                                       post({std::move(to), std::move(batch)});
                                     });
  made->service.owner = made;
  made->service.on_answered = [this](const AnswerRecord& record) {
    log_answer(record);
    reports_.answered(record);
  };
  return made;
}

std::vector<std::shared_ptr<Host>> Server::Impl::hosts(std::vector<HostedModel> models) {
  std::vector<std::shared_ptr<Host>> made;
  for (HostedModel& model : models) {
    made.push_back(host(std::move(model)));
  }
  return made;
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
  for (const auto step : {&Impl::start_reports, &Impl::listen_admin}) {
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
    // Monitors ask for these by names of their own network. A page that reads them under a name
    // made to lead here learns nothing that is secret, and nothing that a server with keys does not
    // show as well.
    pages_ = PageGuard({.origins = cors_,
                        .names = std::move(names),
                        .remedy = "--allow-origin, --allowed-hosts or an --api-key",
                        .any_name = {"/health", "/ping", "/metrics"}});
  }
  if (Status listening = public_.listen(options_.host, options_.port, "--port"); !listening.ok()) {
    const bool same = options_.port > 0 && options_.port == options_.admin.port;
    return same ? make_error(listening.error().code,
                             "--port and --admin-port are both {}: give each a port of its own",
                             options_.port)
                : listening;
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

Status Server::Impl::start_reports() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return reports_.start(
      {.otlp_endpoint = options_.otlp_endpoint,
       .scaler_url = options_.scaler_url,
       .version = version_,
       .unix_offset_ns =
           std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() - environment_.clock(),
       .random = environment_.random});
}

// A server whose devices have all failed is to be started again.
void Server::Impl::beat() {
  if (residents_.models().in_service()) {
    options_.heartbeat.beat();
  }
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

void Server::Impl::set_ready(ModelLoader* loader) {
  asio::post(io_, [this, loader] {
    if (models_.state() == ServerState::kLoading) {
      models_.set_state(ServerState::kReady);
      residents_.start(loader);
    }
  });
}

void Server::Impl::fell_asleep(std::size_t model) {
  asio::post(io_, [this, model] {
    residents_.fell_asleep(model);
    tell_scaler(std::static_pointer_cast<Host>(residents_.sink(model))->service);
  });
}

void Server::Impl::woke(std::size_t model, Status loaded, std::vector<Finished> ended) {
  asio::post(io_, [this, model, loaded = std::move(loaded), ended = std::move(ended)] {
    residents_.woke(model, loaded, ended);
  });
}

void Server::Impl::tell(std::function<void(Residents&)> what) {
  asio::post(io_, [this, what = std::move(what)] { what(residents_); });
}

void Server::Impl::stop() {
  asio::post(io_, [this] {
    if (std::exchange(drain_.stopped, true)) {
      cut_answers();
    } else {
      begin_drain();
    }
  });
}

void Server::Impl::begin_drain() {
  if (models_.state() == ServerState::kDraining) {
    return;
  }
  models_.set_state(ServerState::kDraining);
  public_.close_receiving();
  drain_.deadline.expires_after(std::chrono::milliseconds(options_.drain_timeout_ms));
  drain_.deadline.async_wait([this](const error_code& ec) {
    if (!ec) {
      cut_answers();
    }
  });
  close_when_drained();
}

void Server::Impl::cut_answers() {
  residents_.cancel_all({.status = 503, .message = "the server is shutting down"});
  drain_.deadline.expires_after(kLastWords);
  drain_.deadline.async_wait([this](const error_code& ec) {
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
  drain_.deadline.cancel();
  beat_.cancel();
  watch_.cancel();
  residents_.stop();
  public_.close();
  operators_.close();
}

void Server::Impl::post(Mailbox::Letter letter) {
  if (mailbox_.put(std::move(letter))) {
    asio::post(io_, [this] { deliver(); });
  }
}

void Server::Impl::tell_scaler(const Service& service) {
  if (const auto& wanted = service.fleet().replicas_wanted()) {
    reports_.replicas_wanted(service.model().names.front(), *wanted, environment_.unix_time_s());
  }
}

void Server::Impl::deliver() {
  const Mailbox::Letters letters = mailbox_.take();
  for (const Mailbox::Letter& letter : letters.all) {
    Service& service = letter.to->service;
    service.deliver(letter.batch);
    if (letter.batch.replicas_wanted) {
      tell_scaler(service);
    }
  }
  if (letters.requests_ended) {
    residents_.requests_ended();
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
  watch_.expires_after(
      std::chrono::nanoseconds(std::max<TimeNs>(*due_ns - environment_.clock(), 0)));
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
void Server::set_ready(ModelLoader* loader) {
  impl_->set_ready(loader);
}
void Server::planned(std::size_t model, IntentPlan plan) {
  impl_->tell(
      [model, plan = std::move(plan)](Residents& residents) { residents.planned(model, plan); });
}
void Server::changes(std::size_t model, ConfigurationChange how) {
  impl_->tell(
      [model, how = std::move(how)](Residents& residents) { residents.changes(model, how); });
}
void Server::kept(std::size_t model) {
  impl_->tell([model](Residents& residents) { residents.kept(model); });
}
void Server::succeeded(std::size_t model, ServedModel as, bool must_leave) {
  impl_->tell([model, as = std::move(as), must_leave](Residents& residents) {
    residents.succeeded(model, as, must_leave);
  });
}
void Server::replaced(std::size_t model, Replacement by) {
  impl_->tell(
      [model, host = std::static_pointer_cast<Host>(std::move(by.host)),
       loaded = by.loaded](Residents& residents) { residents.replaced(model, host, loaded); });
}
void Server::not_replaced(std::size_t model, Error error) {
  impl_->tell([model, error = std::move(error)](Residents& residents) {
    residents.not_replaced(model, error);
  });
}
void Server::profiling(std::size_t model, const ProfileProgress& progress) {
  impl_->tell([model, progress](Residents& residents) { residents.profiling(model, progress); });
}
void Server::profiled(std::size_t model, Status how) {
  impl_->tell(
      [model, how = std::move(how)](Residents& residents) { residents.profiled(model, how); });
}

std::optional<std::uint64_t> Server::quiet() const {
  return impl_->quiet();
}

void Server::fell_asleep(std::size_t model) {
  impl_->fell_asleep(model);
}
void Server::woke(std::size_t model, Status loaded, std::vector<Finished> ended) {
  impl_->woke(model, std::move(loaded), std::move(ended));
}
void Server::stop() {
  impl_->stop();
}
void Server::reload_tls() {
  impl_->reload_tls();
}
std::shared_ptr<TokenSink> Server::host(HostedModel model) {
  return impl_->host(std::move(model));
}
void Server::loaded(std::size_t model, double seconds) {
  impl_->tell([model, seconds](Residents& residents) { residents.loaded(model, seconds); });
}
void Server::deploying(std::string name, const JobProgress& progress) {
  impl_->tell([name = std::move(name), progress](Residents& residents) {
    residents.deploying(name, progress);
  });
}
void Server::deployed(std::shared_ptr<TokenSink> host, bool loaded) {
  impl_->tell([host = std::static_pointer_cast<Host>(std::move(host)),
               loaded](Residents& residents) { residents.deployed(host, loaded); });
}
void Server::failed(std::string name, Error error) {
  impl_->tell([name = std::move(name), error = std::move(error)](Residents& residents) {
    residents.failed(name, error);
  });
}
void Server::changing(std::size_t model, const JobProgress& progress) {
  impl_->tell([model, progress](Residents& residents) { residents.changing(model, progress); });
}
std::shared_ptr<TokenSink> Server::sink(std::size_t model) {
  return impl_->sink(model);
}

}  // namespace protean
