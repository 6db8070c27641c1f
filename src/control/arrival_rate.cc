#include "control/arrival_rate.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace protean {
namespace {

constexpr double kDeviations = 4;       // beyond which a difference is no chance
constexpr double kConfidence = 2;       // deviations above a count that it stays below
constexpr double kLongRunS = 60;        // a mean of less time says nothing about later
constexpr double kPromptMemory = 0.95;  // about 20 prompts count

}  // namespace

void ArrivalRate::arrived(TimeNs now_ns, std::int64_t prompt_tokens) {
  begin_ns_ = begin_ns_ < 0 ? now_ns : begin_ns_;
  const std::int64_t number = now_ns / kSliceNs;
  Slice& slice = slices_[static_cast<std::size_t>(number % std::ssize(slices_))];
  if (slice.number != number) {
    slice = {.number = number};
  }
  const auto prompt = static_cast<double>(prompt_tokens);
  slice.requests += 1;
  slice.tokens += prompt;
  mean_prompt_ =
      mean_prompt_ == 0 ? prompt : kPromptMemory * mean_prompt_ + (1 - kPromptMemory) * prompt;
}

ArrivalRate::Slice ArrivalRate::slice(std::int64_t number) const {
  const Slice& slice = slices_[static_cast<std::size_t>(number % std::ssize(slices_))];
  return slice.number == number ? slice : Slice{};
}

ArrivalRate::Slice ArrivalRate::sum(std::int64_t newest, std::int64_t count) const {
  Slice sum;
  for (std::int64_t number = newest; number > newest - count && number >= 0; --number) {
    const Slice one = slice(number);
    sum.requests += one.requests;
    sum.tokens += one.tokens;
  }
  return sum;
}

// Compares the counts of at most 16 equal pieces.
double ArrivalRate::dispersion(std::int64_t newest, std::int64_t count) const {
  constexpr double kLeastRequests = 16;
  const std::int64_t length = std::max<std::int64_t>(1, count / 16);
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
  return requests < kLeastRequests ? 1 : std::max(1.0, (squares / pieces - mean * mean) / mean);
}

ArrivalRate::Rate ArrivalRate::rate(TimeNs now_ns) const {
  if (begin_ns_ < 0) {
    return {.lasts_s = static_cast<double>(kLongest * kSliceNs) / kNsPerS};
  }
  // A window has the present slice so far and whole slices before it, none before the first
  // request.
  const std::int64_t now = now_ns / kSliceNs;
  const auto length_s = [&](std::int64_t whole) {
    const TimeNs length_ns = std::min(whole * kSliceNs + now_ns % kSliceNs, now_ns - begin_ns_);
    return static_cast<double>(std::max(length_ns, kShortest * kSliceNs)) / kNsPerS;
  };
  std::int64_t whole = kShortest;
  Slice in = sum(now, whole + 1);
  std::vector<std::pair<double, double>> newest = {{in.requests, length_s(whole)}};
  for (; 2 * whole <= kLongest && length_s(2 * whole) > length_s(whole); whole *= 2) {
    const Slice longer = sum(now, 2 * whole + 1);
    const double longer_s = length_s(2 * whole);
    // At a constant rate, the count of a part is binomial.
    const bool changed = std::any_of(newest.begin(), newest.end(), [&](const auto& part) {
      const double share = part.second / longer_s;
      const double expected = longer.requests * share;
      return std::abs(part.first - expected) >
             kDeviations * std::sqrt(std::max(1.0, expected * (1 - share)));
    });
    if (changed) {
      break;
    }
    in = longer;
    newest.emplace_back(in.requests, longer_s);
  }
  const double seconds = length_s(whole);
  const double per_s = in.requests / seconds;
  const double spread = dispersion(now - 1, std::min(whole, now - begin_ns_ / kSliceNs));
  // The upper score limit of a Poisson count, widened by the dispersion.
  const double square = kConfidence * kConfidence * spread;
  const double most = in.requests + square / 2 + std::sqrt(square * (in.requests + square / 4));
  const double long_run = sum(now, kLongest + 1).requests / std::max(length_s(kLongest), kLongRunS);
  return {.per_s = per_s,
          .most_per_s = most / seconds,
          .lasts_s = seconds,
          .later_per_s = std::min(per_s, long_run),
          .dispersion = spread,
          .prompt_tokens = in.requests >= 1 ? in.tokens / in.requests : mean_prompt_};
}

}  // namespace protean
