#include "server/background_work.h"

#include <utility>

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
  for (auto jobs = jobs_.pop_all(); !jobs.empty(); jobs = jobs_.pop_all()) {
    for (const Job& job : jobs) {
      if (stopping_) {
        return;
      }
      post_(job());
    }
  }
}

}  // namespace protean
