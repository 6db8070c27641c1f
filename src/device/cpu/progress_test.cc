#include "device/cpu/progress.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "device/cpu/shared_exchange.h"

namespace protean::cpu {
namespace {

// Two devices that write in turns: each waits for the other's last moment before it goes on.
TEST(GroupProgress, WhatWasWrittenBeforeAMomentIsSeenAfterIt) {
  constexpr std::uint64_t kSteps = 5'000;
  for (const bool spins : {false, true}) {
    GroupProgress progress(2, spins);
    std::uint64_t shared = 0;
    std::vector<std::thread> devices;
    for (int device = 0; device < 2; ++device) {
      devices.emplace_back([&, device] {
        for (std::uint64_t step = 1; step <= kSteps; ++step) {
          if (device == 1) {
            progress.wait(1, 0, {step, 3});
          } else if (step > 1) {
            progress.wait(0, 1, {step - 1, 3});
          }
          EXPECT_EQ(shared, 2 * (step - 1) + static_cast<std::uint64_t>(device));
          ++shared;
          progress.reach(device, {step, 3});
        }
      });
    }
    for (std::thread& device : devices) {
      device.join();
    }
    EXPECT_EQ(shared, 2 * kSteps);
  }
}

TEST(GroupProgress, MeasuresHowLongADeviceWaits) {
  for (const bool spins : {false, true}) {
    GroupProgress progress(2, spins);
    progress.reach(0, {1, 0});
    progress.wait(1, 0, {1, 0});
    EXPECT_EQ(progress.waited_ns(1), 0) << "the other device had come there";
    std::thread waits([&] { progress.wait(1, 0, {2, 0}); });
    while (!progress.waits(1)) {
      std::this_thread::yield();
    }
    progress.reach(0, {2, 0});
    waits.join();
    EXPECT_GT(progress.waited_ns(1), 0);
    EXPECT_EQ(progress.waited_ns(0), 0);
  }
}

TEST(GroupProgress, ALaterMomentCountsAsTheEarlierOnes) {
  GroupProgress progress(1, false);
  progress.wait(0, 0, {0, 0});
  progress.reach(0, {5, 1});
  progress.wait(0, 0, {5, 1});
  progress.wait(0, 0, {4, 900});
}

TEST(GroupProgress, TellsWhenAllDevicesHaveComeToAMoment) {
  GroupProgress progress(3, false);
  int told = 0;
  const auto tell = [&told] { ++told; };
  progress.reach(1, {4, 2});
  progress.when_come({0, 1}, {4, 2}, tell);
  progress.pass(0, {4, 1});
  EXPECT_EQ(told, 0);
  progress.pass(0, {4, 2});
  EXPECT_EQ(told, 1);
  progress.when_come({0, 1}, {3, kStepEnd}, tell);
  EXPECT_EQ(told, 2) << "they have come there before";
  progress.when_come({0, 1}, {5, 0}, tell);
  progress.reach(1, {6, 0});
  progress.fail(0);
  progress.let_go(0);
  progress.reach(0, {6, 0});
  progress.when_come({0, 1}, {5, 0}, tell);
  EXPECT_EQ(told, 2) << "one of them has failed";
}

// Moments are watched while the devices come to them.
TEST(GroupProgress, TellsEachWatchOnce) {
  constexpr std::uint64_t kSteps = 1'000;
  GroupProgress progress(2, false);
  std::vector<std::atomic<int>> told(kSteps);
  std::vector<std::thread> devices;
  for (int device = 0; device < 2; ++device) {
    devices.emplace_back([&progress, device] {
      for (std::uint64_t step = 1; step <= kSteps; ++step) {
        progress.pass(device, {step, 0});
      }
    });
  }
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    progress.when_come({0, 1}, {step, 0}, [&told, step] { ++told[step - 1]; });
  }
  for (std::thread& device : devices) {
    device.join();
  }
  for (const std::atomic<int>& times : told) {
    EXPECT_EQ(times.load(), 1);
  }
}

TEST(GroupProgress, NoDeviceWaitsForOneThatHasFailed) {
  GroupProgress progress(2, false);
  std::thread waiter([&] { progress.wait(0, 1, {7, 1}); });
  while (!progress.waits(0)) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(progress.waits(1)) << "it is the one that hangs";
  progress.fail(1);
  waiter.join();
  EXPECT_FALSE(progress.waits(0));
  progress.wait(0, 1, {8, 1});
  std::atomic<bool> went_on = false;
  std::thread woken([&] {
    progress.reach(1, {7, 1});
    went_on = true;
  });
  std::this_thread::yield();
  EXPECT_FALSE(went_on) << "it stops when it wakes up";
  progress.let_go(1);
  woken.join();
  EXPECT_TRUE(went_on);
}

// Three devices that show rows and read those of all, with rows that change in every step.
TEST(SharedExchange, RowsStayUntilAllHaveReadThem) {
  constexpr int kDevices = 3;
  constexpr int kLayers = 2;
  constexpr std::uint64_t kSteps = 3000;
  ExchangeBoard board(kDevices, false);
  std::vector<Member> all;
  for (int device = 0; device < kDevices; ++device) {
    all.push_back({device, device, 1});
  }
  const std::vector<std::vector<Member>> layers(kLayers, all);
  const GroupMembers members{all, layers, layers, all};
  std::vector<std::thread> devices;
  for (int device = 0; device < kDevices; ++device) {
    devices.emplace_back([&, device] {
      SharedExchange exchange(board, device, members, kLayers);
      std::vector<float> mine(8);
      for (std::uint64_t step = 1; step <= kSteps; ++step) {
        exchange.begin_step(step);
        for (int layer = 0; layer < kLayers; ++layer) {
          exchange.reuse(SharedRows::kMlp);
          const float value = static_cast<float>(step) * 100 + static_cast<float>(layer) * 10;
          mine.assign(mine.size(), value + static_cast<float>(device));
          exchange.show(SharedRows::kMlp, layer, mine);
          float next = value;
          for (const ShownRows& shown : exchange.collect(SharedRows::kMlp, layer)) {
            EXPECT_EQ(shown.rows.front(), next);
            EXPECT_EQ(shown.rows.back(), next++);
          }
          exchange.release(SharedRows::kMlp, layer);
        }
      }
      exchange.reuse(SharedRows::kMlp);  // the rows end with this thread
    });
  }
  for (std::thread& device : devices) {
    device.join();
  }
}

}  // namespace
}  // namespace protean::cpu
