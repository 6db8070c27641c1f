#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "control/load.h"
#include "control/predict.h"
#include "control/step_speed.h"

namespace protean {

// One way in which a load may be served: by one engine, or by several equal ones of a fleet, among
// which the router divides it.
struct Way {
  StepSpeed speed;
  Serving serving;
  Course course;            // of each engine
  double late_per_nat = 0;  // the price of quality
  int engines = 1;
};

// What becomes of a load on a way. Costs are late requests, those that wait at the end twice, and
// the price of the quality lost.
struct Outlook {
  double cost = 0;       // at the present arrivals, while they are expected to last
  double most_cost = 0;  // at the most that they may be
  double late = 0;       // the late requests of these
  bool serves = true;    // KV holds the longest sequence, until KV could be larger again
  Prediction present;    // of one engine
  Prediction most;
};

// Predicts a way, see predict(). If it is to `last`, arrivals are the most that they may be, and a
// fifth more, for a minute.
Outlook outlook_of(const Way& way, const Load& load, bool lasts);

// Returns true if `to` saves a request and a fifth of the cost, or alone holds the longest
// sequence.
bool pays(const Outlook& to, const Outlook& stay);
// Returns the way that pays and costs least at the most arrivals; nothing: none pays.
std::optional<std::size_t> best_of(std::span<const Outlook> ways, const Outlook& stay);
// Returns true if `to` serves all and makes no more requests late. Both are to last.
bool no_later(const Outlook& to, const Outlook& stay);
// Returns true if the present way, for `kept_s`, and its load have lasted for as long as going to
// another way and back takes, or for as long as predictions look ahead.
bool has_lasted(double kept_s, const Load& load, double there_and_back_s);

// Chooses between two engines that become one group, in one of several ways, and forms of lower
// precision. Returns the best group, unless the best lower form costs less at the most arrivals: of
// equals, a group loses no quality. Nothing: the engines stay two.
std::optional<std::size_t> choose_group(const Outlook& stay, std::span<const Outlook> lower,
                                        std::span<const Outlook> groups);

}  // namespace protean
