#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/bounded_queue.h"
#include "base/units.h"
#include "http/api_keys.h"
#include "http/handler.h"
#include "ports/event.h"
#include "ports/token_sink.h"
#include "server/answer/generation.h"
#include "server/answer/served_model.h"
#include "server/background_work.h"
#include "server/openai/text_endpoints.h"
#include "server/operators/metrics.h"
#include "server/routes.h"

namespace protean {

struct ServiceLimits {
  int max_outstanding = 1024;  // requests the engine has at once, running and waiting; more get 429
  ApiKeys keys;                // none: /v1 is open
};

// Where time and chance come from.
struct Environment {
  Clock clock;  // the time base of engine events
  std::function<std::int64_t()> unix_time_s;
  RandomSource random;
  // Runs a job on another thread, then what it returns on the io thread; false: too many wait.
  // Empty: whoever has work does it at once.
  std::function<bool(BackgroundWork::Job)> aside;
};

enum class ServerState { kLoading, kReady, kDraining };

// What the server answers, apart from how it comes over a wire: the OpenAI API on one side, the
// engine's inbox and outputs on the other. Holds what is in flight. Single-threaded (the io
// thread); the inbox outlives it.
class Service final : public HttpHandler {
 public:
  Service(ServiceLimits limits, ServedModel model, MetricsLabels labels, Environment environment,
          BoundedQueue<Event>& inbox);

  std::optional<HttpReply> refuse_early(const HttpCall& call) const override;
  // A call that needs more memory than there is gets 503, and one that meets a bug of ours 500.
  Answer handle(const HttpCall& call) override;
  // From the engine. Calls on_change of every generation it concerns, at the end.
  void deliver(const OutputBatch& batch);
  void cancel_all(const ApiError& why);

  ErrorStyle error_style(const HttpCall& call) const override;
  bool routine(const HttpCall& call) const override;
  void count(const HttpCall& call, int status) override;
  bool draining() const override { return state_ == ServerState::kDraining; }
  void set_state(ServerState state) { state_ = state; }
  ServerState state() const { return state_; }
  const Observation& last_seen() const { return seen_; }
  // Never null.
  const FormStatus& form() const { return *form_; }
  // Asks the engine for a form; the reply says what will be done for it.
  std::shared_ptr<PendingReply> ask_form(FormWish wish);
  TimeNs now_ns() const { return environment_.clock(); }
  std::int64_t unix_time_s() const { return environment_.unix_time_s(); }
  const std::string& model_name() const { return model_.names.front(); }

  // Told of each accepted request that has ended, all its choices.
  std::function<void(const AnswerRecord&)> on_answered = log_answer;

 private:
  // One engine request: accepted or about to be.
  struct Live {
    std::shared_ptr<Generation> generation;
    int choice = 0;
    int max_tokens = 0;
    TimeNs received_ns = 0;
    TimeNs first_token_ns = 0;
    TimeNs last_token_ns = 0;
    bool cancelled = false;
  };
  using LiveMap = std::unordered_map<RequestId, Live>;

  Answer answer(const HttpCall& call);
  // When a request came, and until when its answer is of use.
  struct Timing {
    TimeNs received_ns = 0;
    Deadlines deadlines;
  };

  HttpReply models_reply() const;
  HttpReply model_reply(const std::string& id) const;
  HttpReply health_reply() const;
  // Gives the answer on the io thread, when what is slow has been done on another.
  using Finish = std::function<Answer(const HttpCall& call)>;
  Answer answer_later(const HttpCall& call, std::function<Finish(const HttpCall& call)> slow);
  bool is_long(const HttpCall& call) const;
  Answer generate(const HttpCall& call, ParseDialect parse);
  Checked<std::shared_ptr<Generation>> begin(const HttpCall& call, Checked<DialectCall> asked,
                                             TimeNs received_ns);
  Checked<std::shared_ptr<Generation>> start(std::shared_ptr<Generation> generation,
                                             GenerationCall call, Timing timing);
  // Why not, if not; the generation then has failed.
  std::optional<ApiError> submit(const std::shared_ptr<Generation>& generation,
                                 Checked<std::vector<PreparedChoice>> prepared,
                                 const Timing& timing);
  Answer convert(const HttpCall& call, ParseText parse);
  HttpReply converted(const HttpCall& call, ParseText parse) const;  // any thread
  static void notify(const Generation& generation);
  std::int64_t outstanding() const;
  Checked<std::string> served_name(const std::string& asked) const;
  void on(const Accepted& accepted, TimeNs at_ns);
  void on(const Refused& refused, TimeNs at_ns);
  void on(const PromptScored& scored, TimeNs at_ns);
  void on(const NewToken& token, TimeNs at_ns);
  void on(const Finished& finished, TimeNs at_ns);
  void on(const WishAnswered& answered, TimeNs at_ns);
  void record(const Finished& finished, const Live& live);
  void cancel_unwanted(const Generation& generation);
  Live* touch(RequestId request);
  std::optional<ApiError> refuse_count(std::int64_t choices) const;
  ApiError unknown_model(const std::string& shown) const;
  ApiError queue_full() const;

  const ServiceLimits limits_;
  const ServedModel model_;
  const std::string version_;
  const Environment environment_;
  const std::int64_t created_s_;
  BoundedQueue<Event>& inbox_;
  Metrics metrics_;
  LiveMap live_;
  std::unordered_map<std::shared_ptr<Generation>, std::int64_t>
      pending_;                                       // being prepared: choices
  std::vector<std::shared_ptr<Generation>> touched_;  // by the batch being delivered
  std::uint64_t last_request_ = 0;
  ServerState state_ = ServerState::kLoading;
  Observation seen_;
  std::shared_ptr<const FormStatus> form_;
  std::unordered_map<std::uint64_t, std::shared_ptr<PendingReply>> wishes_;
  std::uint64_t last_wish_ = 0;
};

// Within a catch block: what a client hears of what was thrown. But for want of memory it is our
// bug, which shall cost that request a 500 and a line of the log, not everybody the server.
ApiError error_of_current_exception();

}  // namespace protean
