#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ports/token_sink.h"

namespace protean {

struct Host;

// Passes batches from the engines' threads to the io thread. Any thread may call.
class Mailbox {
 public:
  struct Letter {
    std::shared_ptr<Host> to;
    OutputBatch batch;
  };
  struct Letters {
    std::vector<Letter> all;
    bool requests_ended = false;  // the last requests of all replicas, in one of them
  };

  // Returns true if the mailbox was empty, so that the reader must be woken.
  bool put(Letter letter) {
    const std::lock_guard lock(mutex_);
    const Observation& seen = letter.batch.observation;
    const std::pair key(letter.to.get(), letter.batch.replica.value);
    if (seen.running + seen.waiting > 0) {
      begun_ += busy_.insert(key).second ? 1 : 0;
    } else if (busy_.erase(key) > 0 && busy_.empty()) {
      letters_.requests_ended = true;
    }
    letters_.all.push_back(std::move(letter));
    return letters_.all.size() == 1;
  }
  Letters take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(letters_, {});
  }
  // See Server::quiet(), of the replicas' latest letters.
  std::optional<std::uint64_t> quiet() {
    const std::lock_guard lock(mutex_);
    return busy_.empty() ? std::optional(begun_) : std::nullopt;
  }

 private:
  std::mutex mutex_;
  Letters letters_;
  std::set<std::pair<const Host*, std::int32_t>> busy_;  // replicas that have requests
  std::uint64_t begun_ = 0;                              // times that a replica came to have some
};

}  // namespace protean
