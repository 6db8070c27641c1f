#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/held_device_for_test.h"
#include "engine/recording_sink_for_test.h"

// An engine whose device answers when the test lets it.

namespace protean {

struct EngineMorph : testing::Test {
  explicit EngineMorph(const MorphConfig& config = morph_for_test(10),
                       const StepCost& cost = cost_for_test())
      : morph(config), device(config), engine(engine_for_test(config, cost), device, sink) {}

  void send(auto what) { engine.handle({now_ns += kNsPerMs, std::move(what)}); }
  static Request request(std::uint64_t id, int prompt, int output) {
    Request made;
    made.id = RequestId{id};
    made.max_tokens = output;
    for (int i = 0; i < prompt; ++i) {
      made.prompt.push_back(static_cast<TokenId>(id * 1000) + i);
    }
    return made;
  }
  static FormWish layers(Precision first, Precision second) {
    return {.layers = {{first, first}, {second, second}}};
  }
  Result<Morph> wish(FormWish wished) {
    send(WantForm{++wishes, std::move(wished)});
    const WishAnswered& answer = std::get<WishAnswered>(sink.outputs.back());
    EXPECT_EQ(answer.wish_id, wishes);
    return answer.morph;
  }
  std::string error(FormWish wished) {
    const Result<Morph> answer = wish(std::move(wished));
    return answer.ok() ? "granted" : answer.error().message;
  }
  void ready(std::size_t n = 0) { send(device.ready(n)); }
  void fail(std::size_t n, const std::string& why) {
    send(device.ready(n, Error{ErrorCode::kInternal, why}));
  }
  // Applies commits and moves up to the next step.
  void apply() {
    while (!device.work.empty() && !std::holds_alternative<StepPlan>(device.work.front())) {
      if (const auto done = device.apply_next()) {
        send(*done);
      }
    }
  }
  StepPlan next_plan() {
    apply();
    return std::get<StepPlan>(device.work.front());
  }
  void end_step(TokenId token = 7) {
    apply();
    ASSERT_FALSE(device.work.empty()) << "no step was started";
    const StepPlan plan = next_plan();
    device.work.pop_front();
    send(StepDone{{.id = plan.id, .sampled = std::vector<TokenId>(plan.samples.size(), token)}});
  }
  // Lets the device answer everything, until nothing is left to do.
  void settle() {
    for (int i = 0; i < 10'000 && !(device.preparing.empty() && device.work.empty()); ++i) {
      if (!device.preparing.empty()) {
        ready();
      } else if (std::holds_alternative<StepPlan>(device.work.front())) {
        end_step();
      } else {
        apply();
      }
    }
    ASSERT_TRUE(device.work.empty()) << "no end in sight";
  }
  std::ptrdiff_t place(const std::string& entry) const {
    return std::find(device.log.begin(), device.log.end(), entry) - device.log.begin();
  }

  const MorphConfig morph;
  HeldDevice device;
  RecordingSink sink;
  Engine engine;
  TimeNs now_ns = 0;
  std::uint64_t wishes = 0;
};

}  // namespace protean
