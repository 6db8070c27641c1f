#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace protean {

// The rate at which requests arrive, over the longest time that it has been constant for. Looks at
// windows from half a second to four minutes; a longer window is used as long as every shorter one
// agrees with the rest of it, to five standard deviations of a count. So a change of the load is
// followed quickly, chance is not, and a rate that has not changed is never forgotten (the idea of
// ADWIN, Bifet and Gavalda 2007). Constant memory. Times must not go back.
class ArrivalRate {
 public:
  struct Rate {
    double per_s = 0;          // requests
    double most_per_s = 0;     // the rate is below it with 97.5 % confidence
    double lasts_s = 0;        // how long the rate is expected to go on: as long as it has lasted
    double later_per_s = 0;    // after that: the mean of minutes, or this rate if that is lower
    double dispersion = 1;     // variance of a count of arrivals over its mean; 1 for Poisson
    double prompt_tokens = 0;  // mean of one request
    double prompt_spread = 1;  // mean of the squares of prompts' lengths over the mean's square
  };

  void arrived(TimeNs now_ns, std::int64_t prompt_tokens);
  Rate rate(TimeNs now_ns) const;

 private:
  static constexpr TimeNs kSliceNs = kNsPerS / 4;
  static constexpr std::int64_t kShortest = 2;  // whole slices of a window
  static constexpr std::int64_t kLongest = 1024;
  struct Slice {
    std::int64_t number = -1;
    double requests = 0;
    double tokens = 0;
    double square_tokens = 0;  // sum of the squares of prompts' lengths

    Slice operator+(const Slice& other) const {
      return {number, requests + other.requests, tokens + other.tokens,
              square_tokens + other.square_tokens};
    }
  };

  Slice slice(std::int64_t number) const;
  // Returns the sums over `count` slices, of which `newest` is the last.
  Slice sum(std::int64_t newest, std::int64_t count) const;
  double dispersion(std::int64_t newest, std::int64_t count) const;

  std::array<Slice, kLongest + 1> slices_;
  TimeNs begin_ns_ = -1;
};

}  // namespace protean
