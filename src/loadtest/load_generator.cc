#include "loadtest/load_generator.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <unordered_set>
#include <utility>

#include "http/resume.h"
#include "loadtest/answer_reader.h"

namespace protean::loadtest {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::chrono::milliseconds kProgressInterval{500};
constexpr std::chrono::seconds kGetTimeout{5};

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto in_s = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return in_s(usage.ru_utime) + in_s(usage.ru_stime);
}

}  // namespace

class LoadGenerator::Impl {
 public:
  Impl(GeneratorOptions options, RequestSource source)
      : options_(std::move(options)), source_(std::move(source)), timers_(io_) {}

  Result<RunResult> run(const std::function<void(const Progress&)>& on_progress);
  void stop();
  Result<std::string> get(const std::string& path);

 private:
  using ConnectionPtr = std::shared_ptr<ClientConnection>;
  struct Timers {
    explicit Timers(asio::io_context& io) : due(io), place(io), poll(io), progress(io) {}
    asio::steady_timer due;    // waits until the next request is due
    asio::steady_timer place;  // waits below --max-concurrency; cancelled when a request ends
    asio::steady_timer poll;
    asio::steady_timer progress;
  };

  Status prepare();
  TimeNs now() const;
  // A page to GET: the server's metrics, or its list of models.
  struct Source {
    RequestTemplate request;
    std::string path;
    ClientConnection::Endpoints endpoints;
  };

  struct Failure {
    Outcome outcome = Outcome::kConnectError;
    std::string why;
  };
  asio::awaitable<std::optional<Failure>> open(ClientConnection& connection,
                                               const ServerAddress& server,
                                               const ClientConnection::Endpoints& endpoints);
  Result<ClientConnection::Endpoints> resolve(const ServerAddress& server, std::string_view flag);
  bool sending_ended() const;
  asio::awaitable<void> send_all();
  asio::awaitable<TimeNs> wait_for_place(TimeNs due_ns);
  asio::awaitable<void> request(ReadyRequest ready, TimeNs due_ns);
  asio::awaitable<void> exchange(const ReadyRequest& ready, RequestRecord& record);
  // Sends the request and reads its answer. Returns false if the server had closed the idle
  // connection meanwhile, so that the request should be sent again.
  asio::awaitable<bool> attempt(const ReadyRequest& ready, AnswerReader& reader,
                                RequestRecord& record, ConnectionPtr idle);
  asio::awaitable<void> receive(ClientConnection& connection, AnswerReader& reader);
  void ended(const RequestRecord& record);
  void finish_if_idle();
  asio::awaitable<void> poll_metrics();
  asio::awaitable<Result<std::string>> get_async(const Source& source);
  asio::awaitable<void> report(std::function<void(const Progress&)> on_progress);

  GeneratorOptions options_;
  RequestSource source_;
  asio::io_context io_{1};
  std::optional<asio::ssl::context> tls_;
  ClientConnection::Endpoints endpoints_;
  Source metrics_;
  Timers timers_;
  std::chrono::steady_clock::time_point start_;
  std::deque<RequestRecord> records_;  // a deque, since references to records must stay valid
  std::vector<ConnectionPtr> idle_;
  std::unordered_set<ConnectionPtr> busy_;
  std::unordered_set<const RequestRecord*> running_;
  RunResult result_;
  Progress progress_;
  std::int64_t ended_chunks_ = 0;
  std::deque<TimeNs> free_since_ns_;  // when each free place of --max-concurrency became free
  bool stopped_ = false;
  bool all_sent_ = false;
  bool finished_ = false;
};

Status LoadGenerator::Impl::prepare() {
  const ServerAddress& server = options_.request.server;
  metrics_ = {.request = options_.request, .path = "/metrics", .endpoints = {}};
  if (options_.metrics_server) {  // another server must not get the key and headers
    metrics_.request = {.server = *options_.metrics_server, .path = {}, .model = {}};
    metrics_.path = options_.metrics_server->base_path.empty() ? "/metrics" : "";
  }
  if (server.tls || metrics_.request.server.tls) {
    auto context = make_client_tls(options_.tls);
    if (!context.ok()) {
      return context.error();
    }
    tls_.emplace(*std::move(context));
  }
  auto endpoints = resolve(server, "--base-url");
  auto of_metrics = options_.metrics_server && endpoints.ok()
                        ? resolve(metrics_.request.server, "--metrics-url")
                        : endpoints;
  if (!of_metrics.ok()) {
    return of_metrics.error();
  }
  endpoints_ = *std::move(endpoints);
  metrics_.endpoints = *std::move(of_metrics);
  start_ = std::chrono::steady_clock::now();
  return {};
}

Result<ClientConnection::Endpoints> LoadGenerator::Impl::resolve(const ServerAddress& server,
                                                                 std::string_view flag) {
  error_code failed;
  ClientConnection::Endpoints found = tcp::resolver(io_).resolve(server.host, server.port, failed);
  if (failed) {
    return make_error(ErrorCode::kNotFound, "{}: cannot resolve {}: {}", flag, server.host,
                      failed.message());
  }
  return found;
}

Result<RunResult> LoadGenerator::Impl::run(
    const std::function<void(const Progress&)>& on_progress) {
  if (Status prepared = prepare(); !prepared.ok()) {
    return prepared.error();
  }
  free_since_ns_.assign(static_cast<std::size_t>(options_.max_concurrency), 0);
  const double cpu_before_s = cpu_seconds();
  asio::co_spawn(io_, send_all(), asio::detached);
  if (options_.metrics_interval_ns > 0) {
    asio::co_spawn(io_, poll_metrics(), asio::detached);
  }
  if (on_progress) {
    asio::co_spawn(io_, report(on_progress), asio::detached);
  }
  io_.run();
  result_.cpu_s = cpu_seconds() - cpu_before_s;
  result_.interrupted = stopped_;
  result_.clock_start_ns = std::chrono::nanoseconds(start_.time_since_epoch()).count();
  result_.records.assign(std::make_move_iterator(records_.begin()),
                         std::make_move_iterator(records_.end()));
  return std::move(result_);
}

void LoadGenerator::Impl::stop() {
  asio::post(io_, [this] {
    stopped_ = true;
    timers_.due.cancel();
    timers_.place.cancel();
    for (const ConnectionPtr& connection : busy_) {
      connection->close();
    }
  });
}

TimeNs LoadGenerator::Impl::now() const {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now() - start_).count();
}

asio::awaitable<std::optional<LoadGenerator::Impl::Failure>> LoadGenerator::Impl::open(
    ClientConnection& connection, const ServerAddress& server,
    const ClientConnection::Endpoints& endpoints) {
  if (const error_code refused =
          co_await connection.connect(endpoints, std::chrono::nanoseconds(options_.timeout_ns))) {
    co_return Failure{Outcome::kConnectError, refused.message()};
  }
  if (server.tls) {
    if (const error_code refused = co_await connection.start_tls(*tls_, server.host)) {
      co_return Failure{Outcome::kTlsError, refused.message()};
    }
  }
  co_return std::nullopt;
}

bool LoadGenerator::Impl::sending_ended() const {
  return stopped_ || (options_.duration_ns > 0 && now() >= options_.duration_ns);
}

asio::awaitable<void> LoadGenerator::Impl::send_all() {
  const auto executor = io_.get_executor();
  while (!sending_ended()) {
    auto ready = source_();
    if (!ready) {
      break;
    }
    const TimeNs due_ns = ready->planned.at_ns;
    if (due_ns > now()) {
      timers_.due.expires_at(start_ + std::chrono::nanoseconds(due_ns));
      co_await timers_.due.async_wait(kResume);
    }
    const TimeNs free_ns = co_await wait_for_place(due_ns);
    if (sending_ended()) {
      break;
    }
    ++progress_.sent;
    ++progress_.in_flight;
    asio::co_spawn(io_, request(*std::move(ready), free_ns), asio::detached);
    // Lets running requests proceed when many requests are due at once.
    co_await asio::post(executor, asio::use_awaitable);
  }
  all_sent_ = true;
  finish_if_idle();
}

// Waits until fewer requests run than --max-concurrency. Returns when the request could first have
// been sent: at `due_ns`, or when its place became free if that was later.
asio::awaitable<TimeNs> LoadGenerator::Impl::wait_for_place(TimeNs due_ns) {
  while (options_.max_concurrency > 0 && progress_.in_flight >= options_.max_concurrency &&
         !sending_ended()) {
    timers_.place.expires_at(options_.duration_ns > 0
                                 ? start_ + std::chrono::nanoseconds(options_.duration_ns)
                                 : asio::steady_timer::time_point::max());
    co_await timers_.place.async_wait(kResume);
  }
  if (!free_since_ns_.empty()) {
    due_ns = std::max(due_ns, free_since_ns_.front());
    free_since_ns_.pop_front();
  }
  co_return due_ns;
}

asio::awaitable<void> LoadGenerator::Impl::request(ReadyRequest ready, TimeNs due_ns) {
  RequestRecord& record = records_.emplace_back();
  const PlannedRequest& planned = ready.planned;
  record.index = planned.index;
  record.due_ns = due_ns;
  record.planned_input_tokens = planned.input_tokens;
  record.planned_output_tokens = planned.output_tokens;
  record.sent_ns = now();
  running_.insert(&record);
  co_await exchange(ready, record);
  ended(record);
}

asio::awaitable<void> LoadGenerator::Impl::exchange(const ReadyRequest& ready,
                                                    RequestRecord& record) {
  ConnectionPtr idle;
  if (!idle_.empty()) {
    idle = std::move(idle_.back());
    idle_.pop_back();
  }
  std::string chunks;
  while (true) {
    AnswerReader reader(record, options_.on_answer ? &chunks : nullptr);
    const bool decided = co_await attempt(ready, reader, record, idle);
    if (decided) {
      break;
    }
    idle = nullptr;
  }
  if (options_.on_answer) {
    options_.on_answer(ready, record, chunks);
  }
}

asio::awaitable<bool> LoadGenerator::Impl::attempt(const ReadyRequest& ready, AnswerReader& reader,
                                                   RequestRecord& record, ConnectionPtr idle) {
  const bool reused = idle != nullptr;
  const ConnectionPtr connection =
      reused ? std::move(idle) : std::make_shared<ClientConnection>(io_);
  busy_.insert(connection);
  const ConnectionDeadline deadline(
      io_, std::chrono::nanoseconds(options_.timeout_ns - (now() - record.sent_ns)), connection);
  std::optional<Failure> failure;
  if (!reused) {
    failure = co_await open(*connection, options_.request.server, endpoints_);
  }
  record.connected_ns = reused ? record.sent_ns : now();
  if (!failure) {
    const std::string id = fmt::format("{}-{}", options_.request_id_prefix, ready.planned.index);
    const std::string message = post_request(options_.request, ready.body, id);
    const error_code unsent = co_await connection->write(message);
    // Reads even if writing failed: a server may refuse a request before it has read all of it.
    co_await receive(*connection, reader);
    if (unsent && !reader.started()) {
      failure = Failure{Outcome::kConnectError, unsent.message()};
    }
  }
  busy_.erase(connection);
  if (deadline.expired()) {
    reader.fail(
        Outcome::kTimeout,
        fmt::format("no complete answer after {} s (--timeout)", options_.timeout_ns / kNsPerS),
        now());
  } else if (stopped_) {
    reader.fail(Outcome::kInterrupted, "the run was interrupted", now());
  } else if (reused && !reader.over() && !reader.started()) {
    co_return false;
  } else if (failure) {
    reader.fail(failure->outcome, failure->why, now());
  } else {
    reader.closed(now());
  }
  if (reader.connection_reusable() && !stopped_) {
    idle_.push_back(connection);
  }
  co_return true;
}

asio::awaitable<void> LoadGenerator::Impl::receive(ClientConnection& connection,
                                                   AnswerReader& reader) {
  const auto executor = io_.get_executor();
  while (true) {
    const ClientConnection::Read read = co_await connection.read_some();
    const TimeNs at_ns = now();
    // Parses only after all other connections that are readable now have taken their times.
    co_await asio::post(executor, asio::use_awaitable);
    if (read.failed || !reader.feed(read.bytes, at_ns)) {
      co_return;
    }
  }
}

void LoadGenerator::Impl::ended(const RequestRecord& record) {
  --progress_.in_flight;
  ended_chunks_ += record.chunks;
  running_.erase(&record);
  if (record.outcome == Outcome::kCompleted) {
    ++progress_.completed;
  } else if (record.outcome != Outcome::kInterrupted) {
    ++progress_.failed;
  }
  result_.elapsed_ns = std::max(result_.elapsed_ns, record.end_ns);
  if (options_.max_concurrency > 0) {
    free_since_ns_.push_back(now());
  }
  timers_.place.cancel();
  finish_if_idle();
}

void LoadGenerator::Impl::finish_if_idle() {
  if (all_sent_ && progress_.in_flight == 0 && !finished_) {
    finished_ = true;
    idle_.clear();
    timers_.poll.cancel();
    timers_.progress.cancel();
  }
}

asio::awaitable<void> LoadGenerator::Impl::poll_metrics() {
  for (bool last = false; !last;) {
    last = finished_;
    const TimeNs at_ns = now();
    const Result<std::string> text = co_await get_async(metrics_);
    const ServerMetrics metrics = text.ok() ? parse_server_metrics(*text) : ServerMetrics{};
    if (!has_any(metrics)) {
      result_.metrics_note = text.ok() ? "no metric is called vllm:*" : text.error().message;
      co_return;
    }
    result_.server.push_back({at_ns, metrics});
    if (!finished_) {
      timers_.poll.expires_after(std::chrono::nanoseconds(options_.metrics_interval_ns));
      co_await timers_.poll.async_wait(kResume);
    }
  }
}

asio::awaitable<Result<std::string>> LoadGenerator::Impl::get_async(const Source& source) {
  const ServerAddress& server = source.request.server;
  const ConnectionPtr connection = std::make_shared<ClientConnection>(io_);
  const ConnectionDeadline deadline(io_, kGetTimeout, connection);
  const auto failure = co_await open(*connection, server, source.endpoints);
  if (failure) {
    co_return make_error(ErrorCode::kUnavailable, "{}: {}", server.host_header, failure->why);
  }
  const std::string message = get_request(source.request, source.path);
  co_await connection->write(message);
  std::string body;
  ResponseReader response([&](std::string_view bytes) { body += bytes; });
  Status read;
  while (read.ok() && !response.done()) {
    const ClientConnection::Read got = co_await connection->read_some();
    read = got.failed ? response.finish() : response.feed(got.bytes);
  }
  if (!read.ok() || response.status() != 200) {
    co_return make_error(ErrorCode::kUnavailable, "GET {}{}: {}", server.base_path, source.path,
                         deadline.expired() ? "no answer within 5 s"
                         : !read.ok()       ? read.error().message
                                            : fmt::format("HTTP {}", response.status()));
  }
  co_return body;
}

Result<std::string> LoadGenerator::Impl::get(const std::string& path) {
  if (Status prepared = prepare(); !prepared.ok()) {
    return prepared.error();
  }
  std::optional<Result<std::string>> answer;
  const Source source{options_.request, path, endpoints_};
  const auto ask = [&]() -> asio::awaitable<void> { answer = co_await get_async(source); };
  asio::co_spawn(io_, ask(), asio::detached);
  io_.run();
  return *std::move(answer);
}

asio::awaitable<void> LoadGenerator::Impl::report(
    std::function<void(const Progress&)> on_progress) {
  while (!finished_) {
    timers_.progress.expires_after(kProgressInterval);
    co_await timers_.progress.async_wait(kResume);
    progress_.elapsed_ns = now();
    progress_.chunks = ended_chunks_;
    for (const RequestRecord* record : running_) {
      progress_.chunks += record->chunks;
    }
    on_progress(progress_);
  }
}

LoadGenerator::LoadGenerator(GeneratorOptions options, RequestSource source)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(source))) {}
LoadGenerator::~LoadGenerator() = default;

Result<RunResult> LoadGenerator::run(const std::function<void(const Progress&)>& on_progress) {
  return impl_->run(on_progress);
}
void LoadGenerator::stop() {
  impl_->stop();
}

Result<std::string> LoadGenerator::get(const GeneratorOptions& options, const std::string& path) {
  Impl getter(options, [] { return std::nullopt; });
  return getter.get(path);
}

}  // namespace protean::loadtest
