#pragma once

#include <cstdint>

namespace protean {

// What the bodies of all requests that are being received may take together. On the io thread.
class BodyBudget {
 public:
  explicit BodyBudget(std::int64_t bytes) : free_(bytes) {}

 private:
  friend class BodyShare;
  std::int64_t free_;
};

// One request's part of it, given back at the end.
class BodyShare {
 public:
  explicit BodyShare(BodyBudget& budget) : budget_(budget) {}
  ~BodyShare() { budget_.free_ += bytes_; }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  // False, and nothing is taken, when there is not so much.
  bool grow_to(std::int64_t bytes) {
    if (bytes - bytes_ > budget_.free_) {
      return false;
    }
    budget_.free_ -= bytes - bytes_;
    bytes_ = bytes;
    return true;
  }

 private:
  BodyBudget& budget_;
  std::int64_t bytes_ = 0;
};

}  // namespace protean
