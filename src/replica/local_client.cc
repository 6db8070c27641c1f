#include "replica/local_client.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "host/machine.h"
#include "replica/model_options.h"
#include "replica/model_place.h"
#include "terminal/exit.h"

namespace protean {

// Holds batches until take() is called.
class LocalClient::Outputs : public TokenSink {
 public:
  void emit(OutputBatch batch) override { queue_.push(std::move(batch)); }
  std::vector<OutputBatch> take() { return queue_.pop_all(); }

 private:
  BoundedQueue<OutputBatch> queue_{1};
};

LocalClient::LocalClient(std::string path, ModelFiles files, Sizing sizing)
    : path_(std::move(path)),
      files_(std::move(files)),
      sizing_(std::move(sizing)),
      inbox_(16),
      outputs_(std::make_unique<Outputs>()) {}

LocalClient::~LocalClient() = default;

Result<std::unique_ptr<LocalClient>> LocalClient::open(const ModelOptions& asked) {
  ModelOptions options = asked;
  options.group.replicas = std::max(1, asked.group.replicas);  // one has all CPUs
  if (Status located = locate_model(options); !located.ok()) {
    return located.error();
  }
  auto files = open_model_files(options);
  if (!files.ok()) {
    return files.error();
  }
  auto sizing = choose_sizing(options, files->checkpoint->spec(), this_machine());
  if (!sizing.ok()) {
    return sizing.error();
  }
  for (const std::string& warning : sizing->warnings) {
    log::warning("{}", warning);
  }
  std::unique_ptr<LocalClient> client(
      new LocalClient(options.model, *std::move(files), *std::move(sizing)));
  auto replicas = Replicas::start({.model = options, .sizing = client->sizing_},
                                  {*client->files_.checkpoint}, client->inbox_, *client->outputs_);
  if (!replicas.ok()) {
    return replicas.error();
  }
  client->replicas_ = *std::move(replicas);
  return client;
}

bool LocalClient::interrupt() {
  const std::uint64_t running = running_.exchange(0);
  if (running != 0) {
    inbox_.push({steady_now_ns(), Cancel{RequestId{running}}});
  }
  return running != 0;
}

RequestId LocalClient::submit(Request request) {
  const RequestId id{++last_request_};
  request.id = id;
  inbox_.push({steady_now_ns(), Arrival{std::move(request)}});
  return id;
}

std::vector<OutputBatch> LocalClient::take() {
  return outputs_->take();
}

Result<Finished> LocalClient::run(Request request, bool at_text_start,
                                  const std::function<void(std::string_view)>& on_text) {
  const RequestId id = submit(std::move(request));
  running_ = id.value;  // after the arrival is sent: a cancel must not overtake it
  auto finished = take_answer(at_text_start, on_text);
  running_ = 0;
  return finished;
}

Result<Finished> LocalClient::take_answer(bool at_text_start,
                                          const std::function<void(std::string_view)>& on_text) {
  StreamDecoder decoder(*files_.tokenizer, at_text_start);
  while (true) {
    for (OutputBatch& batch : take()) {
      for (Output& output : batch.outputs) {
        if (const auto* refused = std::get_if<Refused>(&output)) {
          return refused->error;
        }
        if (const auto* token = std::get_if<NewToken>(&output)) {
          on_text(decoder.push(token->token));
        } else if (auto* finished = std::get_if<Finished>(&output)) {
          on_text(decoder.finish());
          return std::move(*finished);
        }
      }
    }
  }
}

InterruptibleClient::InterruptibleClient()
    : watcher_({SIGINT, SIGTERM}, [this](int) {
        LocalClient* known = ready_;
        if (known == nullptr || !known->interrupt()) {
          settings_.restore();
          std::_Exit(kExitInterrupted);
        }
      }) {}

Status InterruptibleClient::open(const ModelOptions& options) {
  auto opened = LocalClient::open(options);
  if (!opened.ok()) {
    return opened.error();
  }
  client_ = *std::move(opened);
  ready_ = client_.get();
  return {};
}

}  // namespace protean
