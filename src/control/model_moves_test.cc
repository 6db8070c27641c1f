#include "control/model_moves.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "control/model_load.h"

namespace protean {
namespace {

constexpr TimeNs kWindowNs = ModelLoad::kWindowNs;
constexpr std::int64_t kBytes = 100;  // of a model

EstimatedConfiguration configuration_of(int tensor, Precision weights, double tpot_ms,
                                        std::int64_t bytes = kBytes) {
  return {.configuration = {.tensor = tensor, .weights = weights},
          .latency = {.ttft_us = 0, .tpot_us = 1000 * tpot_ms},
          .memory = {.tensor = tensor, .block_bytes = bytes / tensor},
          .total_bytes = bytes};
}

// Returns a model of one layer on device 0 that is served as its only candidate.
MovableModel model_on(int device, double busy, const char* intent = "min-latency") {
  MovableModel model;
  model.wish.spec.layers = 1;
  model.wish.intent = *parse_intent(intent);
  model.wish.load.output_tokens = 1;
  model.candidates = {configuration_of(1, Precision::kBf16, 100)};
  model.devices = {device};
  model.busy = busy;
  model.change_s = 0.5;
  return model;
}

std::vector<DeviceState> devices_with(std::int64_t free_bytes, std::size_t count = 2) {
  return std::vector<DeviceState>(count, {.free_bytes = free_bytes});
}

std::optional<ModelMove> move_of(const std::vector<MovableModel>& models,
                                 std::int64_t free_bytes = kBytes) {
  return best_move(models, devices_with(free_bytes), kWindowNs);
}

TEST(ModelMoves, AModelLeavesADeviceThatAnotherOneUses) {
  const auto move = move_of({model_on(0, 1), model_on(0, 1)});
  ASSERT_TRUE(move.has_value());
  EXPECT_EQ(move->placement.devices, std::vector<int>{1});
  EXPECT_NEAR(move->slowed, 2, 1e-6);
  EXPECT_NEAR(move->slowed_to, 1, 1e-6);
  EXPECT_NEAR(move->saves_s, 120, 1e-3);  // both models take half the time
  EXPECT_NEAR(move->costs_s, 2 * 0.5 * (1 + 2), 1e-9);
}

TEST(ModelMoves, AModelMovesOnlyToWhatItsOwnBoundAllows) {
  std::vector<MovableModel> models = {model_on(0, 1), model_on(0, 1)};
  models[0].candidates.push_back(configuration_of(1, Precision::kW8, 1, kBytes / 2));
  models[1].candidates.clear();
  ASSERT_TRUE(move_of(models).has_value());
  EXPECT_EQ(move_of(models)->candidate, 1U);
  models[0].most_device_bytes = kBytes / 2;
  EXPECT_EQ(move_of(models)->candidate, 1U);
  models[0].most_device_bytes = kBytes / 2 - 1;
  EXPECT_FALSE(move_of(models).has_value());
}

TEST(ModelMoves, NothingMovesThatSavesLessThanItCosts) {
  std::vector<MovableModel> models = {model_on(0, 0.1), model_on(0, 0.1)};
  ASSERT_TRUE(move_of(models).has_value());
  models[0].change_s = models[1].change_s = 2;
  EXPECT_FALSE(move_of(models).has_value());
  // The load of both may be chance.
  models[0].change_s = models[1].change_s = 0.5;
  models[0].busy_error = models[1].busy_error = 0.1;
  EXPECT_FALSE(move_of(models).has_value());
}

TEST(ModelMoves, NothingMovesToAnEquallyBusyDevice) {
  EXPECT_FALSE(move_of({model_on(0, 0.5), model_on(0, 0.5), model_on(1, 0.5)}).has_value());
  EXPECT_FALSE(move_of({model_on(1, 1)}).has_value());
}

TEST(ModelMoves, AModelMovesOnlyWhereItFits) {
  const std::vector<MovableModel> models = {model_on(0, 1), model_on(0, 1)};
  EXPECT_FALSE(move_of(models, kBytes - 1).has_value());
  std::vector<DeviceState> devices = devices_with(0);
  devices[1].free_bytes = kBytes;
  EXPECT_TRUE(best_move(models, devices, kWindowNs).has_value());
}

TEST(ModelMoves, ModelsWithoutCandidatesStayAndCount) {
  MovableModel fixed = model_on(0, 1);
  fixed.candidates.clear();
  EXPECT_FALSE(move_of({fixed, fixed}).has_value());
  const auto move = move_of({fixed, model_on(0, 1)});
  ASSERT_TRUE(move.has_value());
  EXPECT_EQ(move->model, 1U);
}

TEST(ModelMoves, AnotherConfigurationHasToBeBetterByMoreThanEstimatesErr) {
  MovableModel model = model_on(0, 1);
  model.candidates.push_back(configuration_of(1, Precision::kW8, 90));
  EXPECT_FALSE(move_of({model}).has_value());
  model.candidates.back() = configuration_of(1, Precision::kW8, 60);
  const auto move = move_of({model});
  ASSERT_TRUE(move.has_value());
  EXPECT_EQ(move->candidate, 1U);
  EXPECT_NEAR(move->saves_s, 120 * (1 - 0.6 * (1 + kEstimateError)), 1e-6);
}

TEST(ModelMoves, AModelMovesOnlyIfItFitsNextToItself) {
  MovableModel model = model_on(0, 1);
  model.candidates.push_back(configuration_of(1, Precision::kW8, 60));
  EXPECT_TRUE(move_of({model}, kBytes).has_value());
  EXPECT_FALSE(move_of({model}, kBytes - 1).has_value());
}

TEST(ModelMoves, AModelThatMorphsNeedsRoomAndTimeForWhatItsWeightsTakeMore) {
  MovableModel model = model_on(0, 1);
  model.candidates.push_back(configuration_of(1, Precision::kW8, 60, kBytes / 2));
  EXPECT_FALSE(move_of({model}, 0).has_value());
  model.morphs_to = {Precision::kBf16, Precision::kW8};
  auto move = move_of({model}, 0);
  ASSERT_TRUE(move.has_value()) << "it needs no room for a second copy";
  EXPECT_TRUE(move->in_place);
  EXPECT_EQ(move->placement.devices, model.devices);
  EXPECT_NEAR(move->costs_s, (0.5 / 2 + 0.5) * (1 + 1), 1e-9);
  model.candidates.back() = configuration_of(1, Precision::kW8, 60, 2 * kBytes);
  EXPECT_FALSE(move_of({model}, kBytes - 1).has_value());
  move = move_of({model}, kBytes);
  ASSERT_TRUE(move.has_value());
  EXPECT_NEAR(move->costs_s, (0.5 * 2 + 0.5) * (1 + 1), 1e-9);
}

TEST(ModelMoves, EachIntentMovesForItsOwnObjective) {
  MovableModel model = model_on(0, 1, "min-memory");
  model.candidates.push_back(configuration_of(1, Precision::kW8, 10, 2 * kBytes));
  EXPECT_FALSE(move_of({model}, 2 * kBytes).has_value());
  model.wish.intent = *parse_intent("min-device-hours");
  model.candidates.back() = configuration_of(2, Precision::kBf16, 60);
  EXPECT_FALSE(move_of({model}).has_value()) << "twice the devices, 0.6 of the time";
  model.wish.intent = *parse_intent("min-latency");
  EXPECT_TRUE(move_of({model}).has_value());
}

TEST(ModelMoves, AModelForAnyIntentMovesOutOfTheWay) {
  MovableModel fixed = model_on(0, 1);
  fixed.candidates.clear();
  const auto move = move_of({fixed, model_on(0, 1, "min-memory")});
  ASSERT_TRUE(move.has_value());
  EXPECT_EQ(move->placement.devices, std::vector<int>{1});
}

TEST(ModelMoves, ABoundThatOthersMakeAModelMissCounts) {
  // The cheapest configuration keeps 150 ms alone, and not next to another model.
  MovableModel model = model_on(0, 1, "latency-slo=150ms");
  model.wish.pricing = {.formula = CostFormula::kMemory, .device_bytes = kBytes};
  MovableModel everywhere = model_on(0, 1);
  everywhere.candidates.clear();
  everywhere.devices = {0, 1};
  EXPECT_FALSE(move_of({model, everywhere}).has_value());
  model.candidates.push_back(configuration_of(1, Precision::kW8, 60, kBytes + 10));
  const auto move = move_of({model, everywhere}, 2 * kBytes);
  ASSERT_TRUE(move.has_value());
  EXPECT_EQ(move->candidate, 1U);
}

// Models on devices in virtual time. Requests of a model arrive at random and each takes a tenth of
// a second of its device; models that have requests share their device.
class Machine {
 public:
  explicit Machine(std::vector<MovableModel> models) : models_(std::move(models)) {
    for (MovableModel& model : models_) {
      model.change_s = 3;
    }
    backlog_s_.resize(models_.size());
    loads_.resize(models_.size());
  }

  // Lets time pass with offered loads that a function gives for each second. Returns the moves.
  int run(int seconds, const std::function<std::vector<double>(int second)>& offered) {
    int moves = 0;
    for (int second = 0; second < seconds; ++second) {
      compute(offered(second));
      now_ns_ += kNsPerS;
      if (now_ns_ < settled_ns_) {
        continue;
      }
      bool full = true;
      for (std::size_t i = 0; i < models_.size(); ++i) {
        loads_[i].sample(now_ns_, backlog_s_[i] > 0 ? 1 : 0);
        models_[i].busy = loads_[i].busy();
        models_[i].busy_error = loads_[i].busy_error();
        full = full && loads_[i].is_full();
      }
      const auto move =
          full ? best_move(models_, devices_with(1000), kWindowNs) : std::optional<ModelMove>();
      if (move) {
        ++moves;
        models_[move->model].devices = move->placement.devices;
        settled_ns_ = now_ns_ + 3 * kNsPerS;
        for (ModelLoad& load : loads_) {
          load = ModelLoad();
        }
      }
    }
    return moves;
  }
  int device_of(std::size_t model) const { return models_[model].devices.front(); }

 private:
  void compute(const std::vector<double>& offered) {
    constexpr double kTickS = 0.01;
    constexpr double kRequestS = 0.1;
    for (int tick = 0; tick < 100; ++tick) {
      std::vector<int> sharing(2);
      for (std::size_t i = 0; i < models_.size(); ++i) {
        backlog_s_[i] +=
            std::bernoulli_distribution(offered[i] * kTickS / kRequestS)(random_) ? kRequestS : 0;
        sharing[static_cast<std::size_t>(device_of(i))] += backlog_s_[i] > 0 ? 1 : 0;
      }
      for (std::size_t i = 0; i < models_.size(); ++i) {
        const int with = std::max(1, sharing[static_cast<std::size_t>(device_of(i))]);
        backlog_s_[i] = std::max(0.0, backlog_s_[i] - kTickS / with);
      }
    }
  }

  std::vector<MovableModel> models_;
  std::vector<ModelLoad> loads_;
  std::vector<double> backlog_s_;
  TimeNs now_ns_ = 0;
  TimeNs settled_ns_ = 0;
  std::mt19937 random_{7};
};

TEST(ModelMoves, PlacementFollowsALoadThatMovesOnceAndStays) {
  Machine machine({model_on(0, 0), model_on(0, 0), model_on(1, 0)});
  // The first and the last model have a device each, but for the idle one.
  EXPECT_EQ(machine.run(1200, [](int) { return std::vector{0.6, 0.01, 0.6}; }), 0);
  // The load of the last model moves to the second one.
  EXPECT_EQ(machine.run(1200, [](int) { return std::vector{0.45, 0.45, 0.01}; }), 1);
  EXPECT_NE(machine.device_of(0), machine.device_of(1));
  EXPECT_EQ(machine.run(3600, [](int) { return std::vector{0.45, 0.45, 0.01}; }), 0);
}

TEST(ModelMoves, PlacementDoesNotOscillate) {
  Machine equal({model_on(0, 0), model_on(0, 0), model_on(1, 0)});
  EXPECT_EQ(equal.run(2 * 3600, [](int) { return std::vector{0.3, 0.3, 0.3}; }), 0);
  // A load that alternates within the window is one that lasts.
  Machine alternating({model_on(0, 0), model_on(0, 0)});
  const auto offered = [](int second) {
    const bool first = second / 30 % 2 == 0;
    return std::vector{first ? 0.6 : 0.01, first ? 0.01 : 0.6};
  };
  EXPECT_LE(alternating.run(2 * 3600, offered), 1);
}

TEST(ModelLoad, CountsTheWindow) {
  ModelLoad load(10 * kNsPerS);
  EXPECT_EQ(load.busy(), 0);
  EXPECT_EQ(load.batch(), 1);
  for (int second = 0; second <= 20; ++second) {
    EXPECT_EQ(load.is_full(), second > 10) << second;
    load.sample((second + 1) * kNsPerS, second < 15 ? 0 : 3);
  }
  EXPECT_NEAR(load.busy(), 6.0 / 11, 1e-9);
  EXPECT_EQ(load.batch(), 3);
  EXPECT_GT(load.busy_error(), 0.2);
  for (int second = 21; second <= 40; ++second) {
    load.sample((second + 1) * kNsPerS, 2);
  }
  EXPECT_EQ(load.busy(), 1);
  EXPECT_EQ(load.busy_error(), 0);
  load = ModelLoad();
  EXPECT_FALSE(load.is_full());
}

}  // namespace
}  // namespace protean
