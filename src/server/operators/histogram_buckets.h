#pragma once

#include <prometheus/histogram.h>

// The upper bounds of histograms. They are vLLM's, so that its dashboards show the same quantiles.

namespace protean {

using HistogramBuckets = prometheus::Histogram::BucketBoundaries;

inline const HistogramBuckets& ttft_buckets() {
  static const HistogramBuckets buckets{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                        1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
  return buckets;
}

inline const HistogramBuckets& token_time_buckets() {
  static const HistogramBuckets buckets{.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                        .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
  return buckets;
}

inline const HistogramBuckets& request_time_buckets() {
  static const HistogramBuckets buckets{.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
  return buckets;
}

inline const HistogramBuckets& token_count_buckets() {
  static const HistogramBuckets buckets{1,     2,      5,      10,     20,     50,    100,
                                        200,   500,    1000,   2000,   5000,   10000, 20000,
                                        50000, 100000, 200000, 500000, 1000000};
  return buckets;
}

inline const HistogramBuckets& step_token_buckets() {
  static const HistogramBuckets buckets{1,   8,    16,   32,   64,   128,  256,
                                        512, 1024, 2048, 4096, 8192, 16384};
  return buckets;
}

inline const HistogramBuckets& choice_buckets() {
  static const HistogramBuckets buckets{1, 2, 5, 10, 20};
  return buckets;
}

}  // namespace protean
