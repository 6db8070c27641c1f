#include "server/background_work.h"

#include <utility>
#include <vector>

namespace protean {
namespace {

constexpr std::size_t kMostWaiting = 256;

}  // namespace

BackgroundWork::BackgroundWork(std::function<void(Done)> post)
    : post_(std::move(post)), jobs_(kMostWaiting) {}

BackgroundWork::~BackgroundWork() {
  stopping_ = true;
  jobs_.close();
  if (thread_.joinable()) {
    thread_.join();
  }
}

bool BackgroundWork::try_run(Job job) {
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  }
  return jobs_.try_push(std::move(job));
}

void BackgroundWork::run() {
  while (true) {
    std::vector<Job> jobs = jobs_.pop_all();
    if (jobs.empty()) {
      return;
    }
    for (Job& job : jobs) {
      if (stopping_) {
        return;
      }
      // The job may keep a model in memory, which is let go of on the io thread, so this is before
      // `post_`, and not when the next job comes.
      Done done = std::exchange(job, nullptr)();
      post_(std::move(done));
    }
  }
}

}  // namespace protean
