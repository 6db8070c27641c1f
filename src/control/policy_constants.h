#pragma once

#include "base/units.h"

namespace protean {

// The numbers by which the policy judges; docs/policy.md has the same table. Everything else that
// it uses is measured or derived.

// Late requests that one nat of KL divergence is worth in balanced mode. A whole answer of 200
// tokens at w4 loses about 4.5 nats, at w8a8 a sixth of one.
inline constexpr double kLatePerNat = 0.02;

// The factor by which losses of quality differ noticeably: precisions lose 0.0002 to 0.1 nats a
// token. Modes are so far apart, and a form that is raised loses so much less.
inline constexpr double kQualityStep = 10;

// Seconds that a prediction looks ahead at most: a later return of the load is another decision.
inline constexpr double kHorizonS = 60;

// The error of predictions, as a share. Smaller gains, and forms that differ by less, are noise.
inline constexpr double kAccuracy = 0.2;

// Late requests that a change saves at least: a fraction of a request is no reason for a change.
inline constexpr double kLeastLate = 1;

// Standard deviations beyond which a difference of arrivals is no chance: one false alarm in some
// million looks.
inline constexpr double kRateChange = 5;

// Standard deviations that arrivals may be above their count: 97.5 % confidence.
inline constexpr double kMostArrivals = 2;

// The latest answers that make up the distribution of lengths: it follows a change within minutes.
inline constexpr double kAnswersRemembered = 500;

// Tokens of an answer while none has ended: a short chat answer.
inline constexpr int kFirstAnswerTokens = 128;

// The pause after a failed step, and after a change of the embeddings that KV had no room for: a
// broken disk is not asked at each decision.
inline constexpr TimeNs kFailedPauseNs = 2 * kNsPerS;

}  // namespace protean
