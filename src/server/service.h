#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/bounded_queue.h"
#include "base/units.h"
#include "http/api_keys.h"
#include "http/handler.h"
#include "ports/event.h"
#include "ports/step_turn.h"
#include "ports/token_sink.h"
#include "server/answer/generation.h"
#include "server/answer/served_model.h"
#include "server/background_work.h"
#include "server/engine_inbox.h"
#include "server/ollama/ollama_call.h"
#include "server/openai/text_endpoints.h"
#include "server/operators/fleet_report.h"
#include "server/operators/live_feed.h"
#include "server/operators/metrics.h"
#include "server/residence.h"
#include "server/routes.h"

namespace protean {

struct ServiceLimits {
  int max_outstanding = 1024;         // requests running and waiting at once; beyond, 429
  TimeNs sleep_idle_ns = kForeverNs;  // without requests, after which the model sleeps
};

// The sources of time, randomness and background threads.
struct Environment {
  Clock clock;  // the clock of engine events
  std::function<std::int64_t()> unix_time_s;
  RandomSource random;
  // Runs a job on another thread, then what it returns on the io thread. Returns false if too many
  // jobs wait. If empty, the service does long work itself.
  std::function<bool(BackgroundWork::Job)> in_background;
};

enum class ServerState { kLoading, kReady, kDraining };

// Answers the calls that name one model: the HTTP API on one side, the inbox and outputs of the
// model's engines on the other. Holds the requests in flight. Belongs to the io thread; the inbox
// outlives it.
class Service {
 public:
  using Answer = HttpHandler::Answer;

  Service(ServiceLimits limits, ServedModel model, MetricsLabels labels, Environment environment,
          BoundedQueue<Event>& inbox);

  // Answers a call that Models::refuse_early() let pass. Throws if memory is short.
  Answer handle(const HttpCall& call);
  // Takes the engine's outputs, then calls on_change of every generation that they concern.
  void deliver(const OutputBatch& batch);
  void cancel_all(const ApiError& why);
  // Lets go of all answers, which keep this object: no more outputs come.
  void forget_all();

  // Returns the metrics of all these services in Prometheus' text format.
  static std::string metrics_text(const std::vector<Service*>& services);
  void set_state(ServerState state);
  ServerState state() const { return state_; }
  const ServedModel& model() const { return *model_; }
  const std::string& version() const { return version_; }
  std::int64_t created_s() const { return start_.unix_s; }
  std::int64_t outstanding() const;  // requests that are being prepared, wait or run

  // The following change whether the engines are in memory, which starts as awake. Events for a
  // model that is not awake are kept until woke(), in their order.
  Residence residence() const { return engines_.residence(); }
  // Returns true if the model may sleep: it is awake and nothing waits for its engines.
  bool may_sleep() const;
  // Returns true if all replicas are out of service and the model is not being loaded again.
  bool out_of_service() const;
  // Returns why the model's only replica is out of service; null if it serves, or if there are
  // several.
  const ReplicaFailure* failure() const;
  // Returns when the model is to sleep unless it is used before; nothing if it is not to.
  std::optional<TimeNs> sleep_due_ns() const;
  // Says how long the model stays in memory after its last request, in place of sleep_idle_ns,
  // until it sleeps. Calls on_stay_changed.
  void keep_loaded(TimeNs ns);
  // Requires may_sleep() or a failure().
  void fall_asleep();
  // The engines are unloaded. Calls on_wanted if events came meanwhile.
  void fell_asleep();
  // Begins to wake a model that sleeps, or is about to: calls on_wanted. One that is awake stays.
  void wake();
  // The engines are loaded, or an error says why they are not: then all that waits for them fails.
  // `ended` are the ends of requests that former engines had accepted.
  void woke(const Status& loaded, const std::vector<Finished>& ended = {});
  // Shows in metrics how often the model was moved without an operator.
  void show_moves(int total) { metrics_.moves(total); }
  // Ends the streams to operators: the model is removed.
  void leave() { feed_.end(); }
  int replicas() const { return model_->replicas; }
  // What the fleet reported last.
  const FleetReport& fleet() const { return fleet_; }
  const std::string& router() const { return model_->router; }
  // Asks a replica for a form. The reply holds the morph to it.
  std::shared_ptr<PendingReply> ask_form(ReplicaId replica, FormWish wish);
  // Keeps in mind what an intent has asked for of a model of one replica: its engines are asked
  // again when they are loaded again. Ends a form that an operator chose, if the model sleeps.
  void rest_in(FormWish wish);
  // The engines are those of another configuration from now on, or will be when they are loaded.
  // Names, tokenizer and chat template are the same. What an intent or an operator has asked for of
  // the former form is not asked for again.
  void become(ServedModel model);
  // Asks the fleet to move requests from one replica to another. The reply holds their number.
  std::shared_ptr<PendingReply> ask_migration(ReplicaId from, ReplicaId to, int requests);
  // Asks the fleet for groups of replicas. The reply holds the changes that lead to them.
  std::shared_ptr<PendingReply> ask_groups(GroupWish wish);
  TimeNs now_ns() const { return environment_.clock(); }
  std::int64_t unix_time_s() const { return environment_.unix_time_s(); }
  TimeNs unix_offset_ns() const { return start_.unix_offset_ns; }  // Unix time less now_ns()
  // The state that operators see: model, version, and a replica's form, load and devices.
  boost::json::object state_json(ReplicaId replica) const;

  // What llama-server's GET /props and GET /slots say: the model, and its requests in work with one
  // idle slot if another request is taken.
  boost::json::object properties_json() const;
  boost::json::array slots_json() const;

  // Streams the state and its changes to an operator, as LiveFeed does.
  std::shared_ptr<GrowingAnswer> watch() {
    return feed_.watch(now_ns(), state_ == ServerState::kDraining);
  }
  // Answers a call with what `slow` returns, which runs on another thread if there is one.
  Answer answer_in_background(const HttpCall& call, std::function<HttpReply()> slow);
  // Returns LiveFeed's recording of the last `minutes`.
  std::string recording(double minutes) const;
  // Time has passed; watch_due_ns() says when that is to be told.
  void pass_time() { feed_.pass(now_ns()); }
  std::optional<TimeNs> watch_due_ns() const { return feed_.due_ns(); }

  // Called for each accepted request when all its choices have ended.
  std::function<void(const AnswerRecord&)> on_answered = log_answer;
  // The model's share of its devices' time; null: it has no priority.
  std::shared_ptr<TimeShare> share;
  // What keeps the service: its answers share it. Expired: it is kept otherwise.
  std::weak_ptr<const void> owner;
  // Called when a model that sleeps is to be loaded.
  std::function<void()> on_wanted;
  // Called when sleep_due_ns() has changed by keep_loaded(), before the request that caused it is
  // outstanding.
  std::function<void()> on_stay_changed = [] {};

 private:
  // When the service was made.
  struct Start {
    explicit Start(const Environment& environment)
        : unix_s(environment.unix_time_s()),
          unix_offset_ns(unix_s * kNsPerS - environment.clock()) {}
    std::int64_t unix_s;
    TimeNs unix_offset_ns;  // Unix time less that of the environment's clock
  };
  // A request that was given to the engine and has not ended.
  struct Live {
    std::shared_ptr<Generation> generation;
    int choice = 0;
    int max_tokens = 0;
    int output_tokens = 0;
    TimeNs received_ns = 0;
    TimeNs first_token_ns = 0;
    TimeNs last_token_ns = 0;
    bool cancelled = false;
  };
  using LiveMap = std::unordered_map<RequestId, Live>;

  Answer answer_ollama(std::string_view path, const HttpCall& call);
  HttpReply load_or_unload(const Checked<OllamaLoad>& asked, const HttpCall& call);
  // When a request was received, and its deadlines.
  struct Timing {
    TimeNs received_ns = 0;
    Deadlines deadlines;
  };

  // Runs on the io thread after the slow work on another thread, and gives the answer.
  using Finish = std::function<Answer(const HttpCall& call)>;
  Answer answer_later(const HttpCall& call, std::function<Finish(const HttpCall& call)> slow);
  bool is_long(const HttpCall& call) const;
  Answer generate(const HttpCall& call, ParseDialect parse);
  Checked<std::shared_ptr<Generation>> begin(const HttpCall& call, Checked<DialectCall> asked,
                                             TimeNs received_ns);
  Checked<std::shared_ptr<Generation>> start(std::shared_ptr<Generation> generation,
                                             GenerationCall call, Timing timing);
  // Returns an error if the generation could not be submitted, and has failed.
  std::optional<ApiError> submit(const std::shared_ptr<Generation>& generation,
                                 Checked<std::vector<PreparedChoice>> prepared,
                                 const Timing& timing);
  Answer convert(const HttpCall& call, ParseText parse);
  static HttpReply converted(const HttpCall& call, ParseText parse, const ServedModel& model);
  static void notify(const Generation& generation);
  void show_state(TimeNs at_ns);
  boost::json::object common_state() const;
  static Checked<std::string> served_name(const std::string& asked, const ServedModel& model);
  void on(const Accepted& accepted, const OutputBatch& batch);
  void on(const Refused& refused, const OutputBatch& batch);
  void on(const PromptScored& scored, const OutputBatch& batch);
  void on(const NewToken& token, const OutputBatch& batch);
  void on(const Finished& finished, const OutputBatch& batch);
  void on(const WishAnswered& answered, const OutputBatch& batch);
  void on(const MigrationAnswered& answered, const OutputBatch& batch);
  void on(const GroupsAnswered& answered, const OutputBatch& batch);
  // Registers a wish and returns its id and the reply that answer_wish() gives.
  std::pair<std::uint64_t, std::shared_ptr<PendingReply>> new_wish();
  std::vector<std::pair<ReplicaId, FormWish>> standing_wishes() const;
  bool have_all_failed() const;
  void forget_failure();
  void answer_wish(std::uint64_t wish, const Result<boost::json::object>& shown);
  void record(const Finished& finished, ReplicaId replica, const Live& live);
  void cancel_unwanted(const Generation& generation);
  void show_residence(Residence residence);
  void show_waiting();
  Live* touch(RequestId request);
  std::optional<ApiError> refuse_count(std::int64_t choices) const;
  ApiError queue_full() const;

  const ServiceLimits limits_;
  std::shared_ptr<const ServedModel> model_;  // jobs on other threads share it
  const std::string version_;
  const Environment environment_;
  const Start start_;
  EngineInbox engines_;
  Metrics metrics_;
  LiveFeed feed_;
  LiveMap live_;
  std::unordered_map<std::shared_ptr<Generation>, std::int64_t>
      pending_;  // being prepared, with their number of choices
  std::vector<std::shared_ptr<Generation>> touched_;  // changed by the batch in delivery
  std::uint64_t last_id_ = 0;                         // the latest id of a request or a wish
  ServerState state_ = ServerState::kLoading;
  FleetReport fleet_;
  std::unordered_map<std::uint64_t, std::shared_ptr<PendingReply>> wishes_;
};

// Returns the error for a model that is not among `names`. `shown` is its name as UTF-8.
ApiError unknown_model(std::string_view shown, const std::vector<std::string>& names);

// Returns the error that a client gets for the exception being handled: 503 for lack of memory. Any
// other exception is a bug, which is logged and fails the request with 500 instead of ending the
// server.
ApiError error_of_current_exception();

}  // namespace protean
