#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/morph_scene_for_test.h"

// An engine whose policy is quick to lower precision, and a burst that makes it do so.

namespace protean {

// A policy that lowers layers for a few milliseconds of waiting.
inline MorphConfig hasty() {
  MorphConfig config = morph_for_test(10, MorphMode::kPerformance);
  config.policy.ttft_ns = 50 * kNsPerMs;
  config.decide_every_ns = 2 * kNsPerMs;
  config.moves_per_step = 1;
  config.moves_share = 0;
  return config;
}

struct Steering : EngineMorph {
  explicit Steering(const MorphConfig& config = hasty()) : EngineMorph(config) {}

  void tick() {
    now_ns = std::max(now_ns, engine.next_deadline_ns().value_or(now_ns) - kNsPerMs);
    send(Tick{});
  }
  // Minutes with one request, after which the form is that of quiet times.
  void calm_down() {
    send(Arrival{request(1000, 4, 1)});
    settle();
    now_ns += 300 * kNsPerS;
    for (int i = 0; i < 100 && device.form() != morph.start; ++i) {  // nothing is known at first
      tick();
      settle();
    }
    ASSERT_EQ(device.form(), morph.start);
  }
  // Six sequences that want 36 blocks, after minutes with one.
  void begin_burst() {
    calm_down();
    calm = sink.form->history->size();
    for (std::uint64_t id = 1; id <= 6; ++id) {
      send(Arrival{request(id, 24, 24)});
    }
  }
  // Goes on until the form has changed for them.
  void lower() {
    for (int i = 0; i < 200 && device.form().kv.blocks <= 30 && !engine.idle(); ++i) {
      if (!device.preparing.empty()) {
        ready();
      } else {
        end_step();
      }
    }
    ASSERT_GT(device.form().kv.blocks, 30);
  }

  std::size_t calm = 0;  // records of the history before the burst
};

}  // namespace protean
