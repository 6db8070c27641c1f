#include "control/arrival_rate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "control/policy_constants.h"

namespace protean {
namespace {

// Returns by how many standard deviations of chance `part` of `all` arrivals, counted in that share
// of the time, differs from a constant rate: the root of the deviance of a binomial count, which is
// normal for few arrivals too.
double deviations(double part, double all, double share) {
  const auto term = [](double seen, double expected) {
    return seen > 0 ? seen * std::log(seen / expected) : 0;
  };
  const double deviance = 2 * (term(part, all * share) + term(all - part, all * (1 - share)));
  return std::sqrt(std::max(0.0, deviance));
}

}  // namespace

void ArrivalRate::arrived(TimeNs now_ns, std::int64_t prompt_tokens) {
  begin_ns_ = begin_ns_ < 0 ? now_ns : begin_ns_;
  const std::int64_t number = now_ns / kSliceNs;
  Slice& slice = slices_[static_cast<std::size_t>(number % std::ssize(slices_))];
  if (slice.number != number) {
    slice = {.number = number};
  }
  slice.requests += 1;
  const auto tokens = static_cast<double>(prompt_tokens);
  slice.tokens += tokens;
  slice.square_tokens += tokens * tokens;
}

ArrivalRate::Slice ArrivalRate::slice(std::int64_t number) const {
  if (number < 0) {
    return {};
  }
  const Slice& slice = slices_[static_cast<std::size_t>(number % std::ssize(slices_))];
  return slice.number == number ? slice : Slice{};
}

ArrivalRate::Slice ArrivalRate::sum(std::int64_t newest, std::int64_t count) const {
  Slice sum;
  for (std::int64_t number = newest; number > newest - count; --number) {
    sum = sum + slice(number);
  }
  return sum;
}

// Compares the counts of at most 16 equal pieces, and counts as many of a Poisson process with
// them, so that few pieces say little.
double ArrivalRate::dispersion(std::int64_t newest, std::int64_t count) const {
  constexpr std::int64_t kPieces = 16;
  const std::int64_t length = std::max<std::int64_t>(1, count / kPieces);
  const std::int64_t whole = count / length;
  count = whole * length;
  const auto pieces = static_cast<double>(whole);
  double requests = 0;
  double squares = 0;
  for (std::int64_t last = newest; last > newest - count; last -= length) {
    const double piece = sum(last, length).requests;
    requests += piece;
    squares += piece * piece;
  }
  const double mean = requests / pieces;
  const double seen = mean > 0 ? squares / mean - requests : 0;
  return std::max(1.0, (seen + kPieces) / (pieces - 1 + kPieces));
}

ArrivalRate::Rate ArrivalRate::rate(TimeNs now_ns) const {
  if (begin_ns_ < 0) {
    return {.lasts_s = static_cast<double>(kLongest * kSliceNs) / kNsPerS};
  }
  // A window has the present slice so far and whole slices before it, none before the first
  // request. Each is longer than the one before it by a quarter at least.
  struct Window {
    std::int64_t whole = 0;
    double seconds = 0;
    Slice in;
  };
  const std::int64_t now = now_ns / kSliceNs;
  std::vector<Window> windows;
  Slice in = slice(now);
  for (std::int64_t whole = 1, next = kShortest; whole <= kLongest; ++whole) {
    in = in + slice(now - whole);
    if (whole < next) {
      continue;
    }
    next += std::max<std::int64_t>(1, whole / 4);
    const TimeNs length_ns = std::min(whole * kSliceNs + now_ns % kSliceNs, now_ns - begin_ns_);
    const double seconds = static_cast<double>(std::max(length_ns, kShortest * kSliceNs)) / kNsPerS;
    const bool changed = std::any_of(windows.begin(), windows.end(), [&](const Window& part) {
      return deviations(part.in.requests, in.requests, part.seconds / seconds) > kRateChange;
    });
    if (changed || (!windows.empty() && seconds <= windows.back().seconds)) {
      break;
    }
    windows.push_back({whole, seconds, in});
  }
  const auto& [whole, seconds, counted] = windows.back();
  const double per_s = counted.requests / seconds;
  const double spread = dispersion(now - 1, std::min(whole, now - begin_ns_ / kSliceNs));
  // The upper score limit of a Poisson count, widened by the dispersion.
  const double square = kMostArrivals * kMostArrivals * spread;
  const double most =
      counted.requests + square / 2 + std::sqrt(square * (counted.requests + square / 4));
  // later_per_s divides by at least kHorizonS: a shorter history does not predict later arrivals.
  const Slice known = sum(now, kLongest + 1);
  const double known_s =
      static_cast<double>(std::min(now_ns - begin_ns_, kLongest * kSliceNs)) / kNsPerS;
  const Slice& prompts = counted.requests >= 1 ? counted : known;
  return {.per_s = per_s,
          .most_per_s = most / seconds,
          .lasts_s = seconds,
          .later_per_s = std::min(per_s, known.requests / std::max(known_s, kHorizonS)),
          .dispersion = spread,
          .prompt_tokens = prompts.tokens / std::max(1.0, prompts.requests),
          .prompt_spread = prompts.tokens > 0 ? prompts.square_tokens * prompts.requests /
                                                    (prompts.tokens * prompts.tokens)
                                              : 1};
}

}  // namespace protean
