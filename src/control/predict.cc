#include "control/predict.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace protean {
namespace {

// Prediction goes on in slices of time, in each of which load and queue are even. The first is as
// long as some steps; since each is longer than the one before, about 22 reach the horizon.
constexpr double kFirstSliceS = 0.05;
constexpr double kSliceGrowth = 1.3;
constexpr double kUnknownCapacity =
    1e9;                           // requests/s of steps without a known cost: above any load
constexpr double kNoQueue = 0.01;  // requests, whose number is a mean here

// Returns log(P(X > z)) of a standard normal X.
double log_normal_tail(double z) {
  if (z < 5) {
    return std::log(std::erfc(z / std::numbers::sqrt2) / 2);
  }
  return -z * z / 2 - std::log(z * std::sqrt(2 * std::numbers::pi));
}

// Returns the share of values that are above `limit`, if they go evenly from `first` to `last` and
// each has a normal error of deviation `sigma`.
double share_above(double first, double last, double limit, double sigma) {
  const double low = std::min(first, last) - limit;
  const double high = std::max({first, last, low + limit + 1e-6}) - limit;
  if (sigma < 1e-6) {
    return std::clamp(high / (high - low), 0.0, 1.0);
  }
  // The integral of a normal distribution function.
  const auto integral = [](double z) {
    return z * std::erfc(-z / std::numbers::sqrt2) / 2 +
           std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
  };
  return sigma * (integral(high / sigma) - integral(low / sigma)) / (high - low);
}

// The time of a round, in which each decoding sequence gets a token: one step for each in flight.
double round_s(const StepSpeed& speed, const StepPrecision& precision, const Serving& serving,
               const Batch& batch) {
  const double steps = serving.steps_in_flight;
  return steps * speed.step_s(precision, {batch.decoding / steps, batch.context_tokens / steps,
                                          batch.prompt * (1 / steps)});
}

// The flow of requests through a replica.
class Flow {
 public:
  Flow(const StepSpeed& speed, const Serving& serving, const Course& course, const Load& load)
      : speed_(speed),
        serving_(serving),
        course_(course),
        load_(load),
        most_round_tokens_(speed.most_step_tokens() * serving.steps_in_flight),
        queue_(load.waiting + load.admitted),
        held_(load.admitted.prompts),
        decoding_(load.decoding),
        context_(load.context_tokens),
        // A new answer gets answer_tokens, and those that run have had some of theirs.
        left_(load.decoding > 0 ? std::max(1.0, load.left_tokens * load.answer_tokens /
                                                    std::max(1.0, load.running_drawn_tokens))
                                : std::max(1.0, load.answer_tokens)),
        known_(queue_.prompts),
        from_(end_of(course.from)),
        to_(end_of(course.to)) {
    prediction_.capacity_per_s = to_.capacity.per_s;
    prediction_.by_kv = to_.capacity.by_kv;
    // A morph changes the precision tag; after it the prefix cache fills again.
    const double refill_s = course.to.kv_blocks * serving.block_tokens /
                            std::max(1e-9, load.arrivals.per_s) /
                            std::max(1.0, load.arrivals.prompt_tokens + load.answer_tokens);
    refilled_s_ = course.seconds > 0 ? course.seconds + refill_s : 0;
  }

  Prediction run() {
    const double lasts_s = std::min(kHorizonS, load_.arrivals.lasts_s);
    const double burst_s = std::min(kHorizonS, std::max(lasts_s, 2 * course_.seconds));
    double at_s = 0;
    for (double next_s = kFirstSliceS;
         at_s < burst_s || (at_s < kHorizonS && queue_.prompts > kNoQueue);
         next_s *= kSliceGrowth) {
      const double end_s = at_s < lasts_s ? lasts_s : at_s < burst_s ? burst_s : kHorizonS;
      const double slice_s = std::min(next_s, end_s - at_s);
      advance(at_s, slice_s);
      at_s += slice_s;
    }
    // The requests that wait at the end will be late, if the form goes on as it does.
    prediction_.backlog =
        queue_.prompts * share_above(at_s - arrival_s(served_total_),
                                     queue_.prompts / to_.capacity.per_s, serving_.ttft_s, 0);
    prediction_.late += prediction_.backlog;
    // Answers that run then end in the form that they run in.
    prediction_.kl_nats += at_s < kHorizonS ? decoding_ * left_ * course_.to.kl_nats : 0;
    prediction_.answer_tokens_per_s = drawn_total_ / std::max(at_s, kFirstSliceS);
    return prediction_;
  }

 private:
  // One end of the course.
  struct End {
    const FormTraits& form;
    Capacity capacity;
    double morph_tokens = 0;  // prompt tokens of a round while a morph runs
  };

  End end_of(const FormTraits& form) const {
    End end{.form = form, .capacity = capacity_of(speed_, serving_, form, load_)};
    if (course_.seconds > 0) {
      const double steps = serving_.steps_in_flight;
      end.morph_tokens =
          steps * speed_.prompt_tokens_within(
                      form.precision, kShortStepS,
                      {load_.decoding / steps, load_.context_tokens / steps, prompt()});
    }
    return end;
  }

  // What a slice of time serves.
  struct Slice {
    double at_s = 0;
    double length_s = 0;
    const End& end;            // the form that serves
    PromptWork prompt;         // of one request in the queue
    double prompt_tokens = 0;  // the most of a round
    double decode_s = 0;       // a round without prompts
    double full_s = 0;         // a round with as many prompt tokens as it may have
    double own_s = 0;          // one request's prompt, if none waits before it
    bool steady = false;       // answers begin and end within the slice
    double served = 0;         // requests that got their first token
    double busy_s = 0;         // all rounds with prompts
    double per_s = 0;          // requests that arrive
    double begun_tokens = 0;   // tokens of prompts that were given KV
  };

  void advance(double at_s, double length_s) {
    // A morph swaps one component after the other: half of its time counts as the old form.
    const End& end = at_s + length_s / 2 < course_.seconds / 2 ? from_ : to_;
    Slice slice{.at_s = at_s, .length_s = length_s, .end = end};
    arrive(slice);
    slice.prompt = prompt();
    const double most = at_s < course_.seconds ? end.morph_tokens : most_round_tokens_;
    slice.prompt_tokens = std::clamp(most, 1.0, std::max(1.0, most_round_tokens_ - decoding_));
    const auto round = [&](double tokens) {
      return round_s(speed_, end.form.precision, serving_,
                     {decoding_, context_, slice.prompt.part(tokens)});
    };
    slice.decode_s = decoding_ > 0 ? round(0) : 0;
    slice.full_s = round(slice.prompt_tokens);
    if (slice.full_s <= 0) {
      return;  // the cost of steps is not known
    }
    const double tokens = slice.prompt.tokens;
    const double steps = serving_.steps_in_flight;
    const PromptWork last = slice.prompt.part(std::min(tokens, slice.prompt_tokens)) * (1 / steps);
    slice.own_s =
        tokens >= slice.prompt_tokens ? tokens / slice.prompt_tokens * slice.full_s : round(tokens);
    slice.own_s +=
        speed_.passing_s(end.form.precision, {decoding_ / steps, context_ / steps, last});
    slice.steady = length_s > (slice.decode_s > 0 ? slice.decode_s : slice.full_s) * left_ / 2;
    serve(slice);
    const double late_share = judge(slice);
    decode(slice, late_share);
  }

  void arrive(Slice& slice) {
    const ArrivalRate::Rate& rate = load_.arrivals;
    slice.per_s = std::max(slice.at_s < rate.lasts_s ? rate.per_s : rate.later_per_s, 1e-9);
    const double arrived = slice.per_s * slice.length_s;
    arrived_per_s_ = (arrived_per_s_ * slice.at_s + arrived) / (slice.at_s + slice.length_s);
    const double hits = slice.at_s < refilled_s_ ? 0 : load_.hit_share;
    queue_ = queue_ + load_.prompt_to_come(hits) * arrived;
  }

  // Computes prompts of requests that KV has room for, as many as the slice has time for.
  void serve(Slice& slice) {
    const Capacity& capacity = slice.end.capacity;
    double admissible = capacity.per_s * slice.length_s;
    if (!slice.steady) {
      const double leaving =
          decoding_ > 0 ? decoding_ * std::min(1.0, slice.length_s / slice.decode_s / left_) : 0;
      const double kv_tokens = slice.end.form.kv_blocks * serving_.block_tokens;
      const double free = std::max(0.0, kv_tokens - context_ + leaving * context_of_one());
      admissible = std::min(held_ + free / (kept_tokens() + serving_.block_tokens / 2.0),
                            std::max(0.0, serving_.most_sequences - decoding_) + leaving);
    }
    admissible = std::min(admissible, queue_.prompts);
    const double needed_s = admissible * slice.prompt.tokens / slice.prompt_tokens * slice.full_s;
    slice.busy_s = std::min(needed_s, slice.length_s);
    slice.served = needed_s > 0 ? admissible * slice.busy_s / needed_s : 0;
    slice.begun_tokens = std::max(0.0, slice.served - held_) * kept_tokens();
    queue_ = queue_ * (queue_.prompts > 0 ? 1 - slice.served / queue_.prompts : 0);
    held_ = std::max(0.0, held_ - slice.served);
  }

  // Counts which of the requests served in the slice are late, and returns their share.
  double judge(const Slice& slice) {
    const double first_s = std::max(slice.own_s, slice.at_s - arrival_s(served_total_));
    served_total_ += slice.served;
    const double last_s =
        std::max(slice.own_s, slice.at_s + slice.length_s - arrival_s(served_total_));
    queued_s_ = last_s > slice.own_s ? queued_s_ + slice.length_s : 0;
    const double sigma = std::sqrt(variance_of(slice) * queued_s_);
    const double late_share =
        std::max(share_above(first_s, last_s, serving_.ttft_s, sigma), chance_of_late(slice));
    prediction_.late += slice.served * late_share;
    return late_share;
  }

  // Returns by how much queue times vary, in seconds squared for each second of a queue. What
  // running sequences have drawn tells how much answers vary.
  double variance_of(const Slice& slice) const {
    const double per_s = slice.end.capacity.per_s;
    const double of_answers =
        std::max(0.0, 2 * load_.running_drawn_tokens / std::max(1.0, load_.answer_tokens) - 1);
    return slice.per_s / per_s * (load_.arrivals.dispersion + of_answers) / per_s;
  }

  // Returns the probability that a request is late because a queue forms by chance.
  double chance_of_late(const Slice& slice) const {
    const double slack_s = serving_.ttft_s - slice.own_s;
    if (slack_s <= 0) {
      return 1;
    }
    const Capacity& capacity = slice.end.capacity;
    const double load = slice.per_s / capacity.per_s;
    const double longer =
        late_probability(load - 1, variance_of(slice), slack_s, slice.at_s + slice.length_s);
    return longer > 0 && capacity.by_room
               ? longer * wait_probability(capacity.sequences, load * capacity.sequences)
               : longer;
  }

  // Draws tokens of answers, and ends answers.
  void decode(const Slice& slice, double late_share) {
    const double rest_s = slice.length_s - slice.busy_s;
    const double rounds =
        slice.busy_s / slice.full_s + (slice.decode_s > 0 ? rest_s / slice.decode_s : 0);
    double drawn = decoding_ * std::min(rounds, left_) + slice.served;
    double ended = decoding_ * std::min(1.0, rounds / left_);
    if (slice.steady) {
      const Capacity& capacity = slice.end.capacity;
      drawn = slice.served * load_.answer_tokens;
      ended = slice.served;
      decoding_ = load_.answer_tokens < 1
                      ? 0
                      : capacity.sequences * slice.served / slice.length_s / capacity.per_s;
      context_ = decoding_ * capacity.context_tokens;
      left_ = std::max(1.0, load_.answer_tokens);
    } else {
      // An answer that ends is longer than those that run.
      const double longer = std::max(0.0, load_.answer_tokens - load_.running_drawn_tokens);
      context_ = std::max(0.0, context_ + drawn - slice.served -
                                   ended * (context_of_one() + longer) + slice.begun_tokens);
      const double begun = load_.answer_tokens >= 1 ? slice.served : 0;
      const double stay = decoding_ - ended;
      left_ = stay + begun > 0
                  ? std::max(1.0, (stay * left_ + begun * load_.answer_tokens) / (stay + begun))
                  : left_;
      decoding_ = stay + begun;
    }
    drawn_total_ += drawn;
    prediction_.kl_nats += drawn * slice.end.form.kl_nats;
    const bool slow =
        serving_.tpot_s > 0 && rounds > 0 && slice.length_s > rounds * serving_.tpot_s;
    prediction_.late += slow ? ended * (1 - late_share) : 0;
    preempt(slice.end.form.kv_blocks * serving_.block_tokens);
  }

  // Sequences that KV no longer holds wait again.
  void preempt(double kv_tokens) {
    const double over = context_ - kv_tokens;
    if (over <= 0 || decoding_ <= 0) {
      return;
    }
    prediction_.kv_short_blocks =
        std::max(prediction_.kv_short_blocks, over / serving_.block_tokens);
    const double each = context_ / decoding_;
    const double preempted = std::min(decoding_, over / each);
    decoding_ -= preempted;
    context_ -= preempted * each;
    queue_ = queue_ + prompt_work(each) * preempted;
    prediction_.late += serving_.tpot_s > 0 ? preempted : 0;
  }

  // Returns when the request with this number in the queue arrived.
  double arrival_s(double number) const {
    return number < known_ ? -load_.oldest_wait_s * (1 - number / known_)
                           : (number - known_) / std::max(arrived_per_s_, 1e-9);
  }

  // Returns the work of one request in the queue.
  PromptWork prompt() const {
    PromptWork one =
        queue_.prompts > 1e-6 ? queue_ * (1 / queue_.prompts) : load_.prompt_to_come(0);
    one.tokens = std::max(1.0, one.tokens);
    return one;
  }

  // Returns the tokens of its prompt that a request keeps in KV, in the mean over steps.
  double kept_tokens() const {
    return queue_.prompts > known_ ? load_.running_prompt_tokens
                                   : std::max(prompt().tokens, load_.running_prompt_tokens);
  }

  double context_of_one() const { return context_ / std::max(1.0, decoding_ + held_); }

  const StepSpeed& speed_;
  const Serving& serving_;
  const Course& course_;
  const Load& load_;
  const double most_round_tokens_;
  PromptWork queue_;    // of requests without a first token
  double held_;         // those among them with KV
  double decoding_;     // sequences
  double context_;      // tokens in KV
  double left_;         // tokens that an answer still gets
  const double known_;  // requests in the queue at the beginning
  const End from_;
  const End to_;
  double arrived_per_s_ = 0;  // in the mean since then
  double served_total_ = 0;
  double queued_s_ = 0;  // since when requests have waited for others
  double drawn_total_ = 0;
  double refilled_s_ = 0;  // when the prefix cache is of use again
  Prediction prediction_;
};

}  // namespace

double late_probability(double drift, double variance, double beyond_s, double at_s) {
  if (variance <= 0 || at_s <= 0) {
    return drift * at_s > beyond_s ? 1 : 0;
  }
  const double sigma = std::sqrt(variance * at_s);
  constexpr double kNegligible = 20;  // a difference of logarithms
  if (2 * drift * beyond_s < -kNegligible * variance && beyond_s - drift * at_s > 7 * sigma) {
    return 0;
  }
  const double direct = std::exp(log_normal_tail((beyond_s - drift * at_s) / sigma));
  const double reflected = std::exp(std::min(
      0.0, 2 * drift * beyond_s / variance + log_normal_tail((beyond_s + drift * at_s) / sigma)));
  return std::min(1.0, direct + reflected);
}

double wait_probability(double places, double busy) {
  if (busy >= places) {
    return 1;
  }
  double blocked = 1;  // Erlang's B formula, one place after the other
  for (double place = 1; place <= places; ++place) {
    blocked = busy * blocked / (place + busy * blocked);
  }
  const double load = busy / places;
  return std::min(1.0, blocked / (1 - load * (1 - blocked)));
}

Capacity capacity_of(const StepSpeed& speed, const Serving& serving, const FormTraits& form,
                     const Load& load) {
  const double answer = std::max(1.0, load.answer_tokens);
  const PromptWork prompt = load.prompt_to_come(load.hit_share);
  const double context =
      load.running_prompt_tokens + load.running_drawn_tokens + serving.block_tokens / 2.0;
  const double by_kv = form.kv_blocks * serving.block_tokens / context;
  const double by_step =
      speed.most_step_tokens() * serving.steps_in_flight / (1 + prompt.tokens / answer);
  const double sequences =
      std::max(1.0, std::min({by_kv, by_step, static_cast<double>(serving.most_sequences)}));
  // In a steady state, sequences / answer of them end in each round, and as many prompts begin.
  const double time_s = round_s(speed, form.precision, serving,
                                {sequences, sequences * context, prompt * (sequences / answer)});
  return {.per_s = time_s > 0 ? sequences / answer / time_s : kUnknownCapacity,
          .sequences = sequences,
          .context_tokens = context,
          .by_room = sequences < by_step,
          .by_kv = sequences >= by_kv};
}

Prediction predict(const StepSpeed& speed, const Serving& serving, const Course& course,
                   const Load& load) {
  return Flow(speed, serving, course, load).run();
}

}  // namespace protean
