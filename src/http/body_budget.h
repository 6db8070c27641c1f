#pragma once

#include <cstdint>

namespace protean {

// Memory for the bodies of all requests that are being received. Belongs to the io thread.
class BodyBudget {
 public:
  explicit BodyBudget(std::int64_t bytes) : free_(bytes) {}

 private:
  friend class BodyShare;
  std::int64_t free_;
};

// One request's share of a BodyBudget. The destructor returns it.
class BodyShare {
 public:
  explicit BodyShare(BodyBudget& budget) : budget_(budget) {}
  ~BodyShare() { budget_.free_ += bytes_; }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  // Makes the share `bytes` large. If the budget has less, changes nothing and returns false.
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
