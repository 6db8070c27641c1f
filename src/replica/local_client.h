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
#include "terminal/line_editor.h"

namespace protean {

// Requests to keep outstanding when there are many to send.
inline constexpr std::size_t kMostOutstanding = 16;

// A model served in this process, without a socket. run() sends one request and streams its text as
// it is decoded; submit() and take() serve many. One thread, except for interrupt().
class LocalClient {
 public:
  static Result<std::unique_ptr<LocalClient>> open(const ModelOptions& asked);
  ~LocalClient();

  const ModelFiles& files() const { return files_; }
  int max_model_len() const { return sizing_.max_model_len; }
  const Form& form() const { return sizing_.form; }
  const std::string& path() const { return path_; }  // of the model on disk

  // Runs the request to its end. Sets its id.
  Result<Finished> run(Request request, bool at_text_start,
                       const std::function<void(std::string_view)>& on_text);

  // Sends a request and returns the id that it gets. Each request ends in a Refused or Finished.
  RequestId submit(Request request);
  // Waits for the next outputs.
  std::vector<OutputBatch> take();

  // Cancels the request of run(), from any thread. Returns false if there is none.
  bool interrupt();

 private:
  class Outputs;
  LocalClient(std::string path, ModelFiles files, Sizing sizing);
  Result<Finished> take_answer(bool at_text_start,
                               const std::function<void(std::string_view)>& on_text);

  const std::string path_;
  ModelFiles files_;
  Sizing sizing_;
  Inbox inbox_;
  std::unique_ptr<Outputs> outputs_;
  std::unique_ptr<Replicas> replicas_;
  std::uint64_t last_request_ = 0;
  std::atomic<std::uint64_t> running_ = 0;  // request that interrupt() cancels; 0: none
};

// A LocalClient for a terminal: Ctrl-C cancels the running answer. If there is none, it restores
// the terminal and ends the program. Construct it before other threads.
class InterruptibleClient {
 public:
  InterruptibleClient();
  Status open(const ModelOptions& options);
  LocalClient& operator*() { return *client_; }
  LocalClient* operator->() { return client_.get(); }

 private:
  std::unique_ptr<LocalClient> client_;
  std::atomic<LocalClient*> ready_ = nullptr;  // for the watcher's thread
  const TerminalSettings settings_;
  SignalWatcher watcher_;  // last member: its thread uses the others
};

}  // namespace protean
