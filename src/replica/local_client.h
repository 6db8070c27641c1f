#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "contract/request.h"
#include "host/signal_watcher.h"
#include "replica/model_files.h"
#include "replica/model_options.h"
#include "replica/replica.h"
#include "replica/sizing.h"

namespace protean {

// Requests to keep going at once, where many are to be asked.
inline constexpr std::size_t kMostOutstanding = 16;

// A model in this process: what the subcommands without a socket stand on. run() asks one request
// and streams its text as it is decoded; submit() and take() keep many going. One thread, but for
// interrupt().
class LocalClient {
 public:
  static Result<std::unique_ptr<LocalClient>> open(const ModelOptions& options);
  ~LocalClient();

  const ModelFiles& files() const { return files_; }
  int max_model_len() const { return sizing_.max_model_len; }

  // Runs to the end; the request's id is set here.
  Result<Finished> run(Request request, bool at_text_start,
                       const std::function<void(std::string_view)>& on_text);

  // Sends a request, whose id is set here, and returns it. Each ends in a Refused or Finished.
  RequestId submit(Request request);
  // Waits for what comes next.
  std::vector<OutputBatch> take();

  // Cancels what run() is at, from any thread. False if it is at nothing.
  bool interrupt();

 private:
  class Outputs;
  LocalClient(ModelFiles files, Sizing sizing);
  Result<Finished> take_answer(bool at_text_start,
                               const std::function<void(std::string_view)>& on_text);

  ModelFiles files_;
  Sizing sizing_;
  Inbox inbox_;
  std::unique_ptr<Outputs> outputs_;
  std::unique_ptr<Replica> replica_;
  std::uint64_t last_request_ = 0;
  std::atomic<std::uint64_t> running_ = 0;  // the request that interrupt() cancels, 0 = none
};

// A LocalClient for a terminal: Ctrl-C cancels the answer it is at, or ends the program when it is
// at none. Construct it before other threads.
class InterruptibleClient {
 public:
  InterruptibleClient();
  Status open(const ModelOptions& options);
  LocalClient& operator*() { return *client_; }
  LocalClient* operator->() { return client_.get(); }

 private:
  std::unique_ptr<LocalClient> client_;
  std::atomic<LocalClient*> ready_ = nullptr;  // for the watcher's thread
  SignalWatcher watcher_;                      // last: it ends before the client does
};

}  // namespace protean
