// Tests that a model is loaded politely if others compute meanwhile, and at once otherwise.

#include "worker/load_turns.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/morph_scene_for_test.h"

namespace protean {
namespace {

int nice_of(int thread) {
  return getpriority(PRIO_PROCESS, static_cast<id_t>(thread));
}

// Returns how many threads of this process have the nice value, and how many have another.
std::pair<int, int> count_threads(int nice) {
  std::pair<int, int> counts;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    ++(nice_of(std::stoi(entry.path().filename().string())) == nice ? counts.first : counts.second);
  }
  return counts;
}

// Returns true once all threads have the nice value. The system may still list threads that were
// joined a moment ago.
bool all_threads_have(int nice) {
  for (int tries = 0; tries < 1'000 && count_threads(nice).second > 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return count_threads(nice).second == 0;
}

struct LoadedScene {
  std::vector<int> nice_while_read;  // by component that was read
  int threads_later = 0;             // of this process, once the model is loaded
  bool normal_later = false;         // all of them have the caller's nice value
  int pieces = 0;                    // between which a component could rest
};

LoadedScene load_scene(std::function<void()> await_turn) {
  LoadedScene seen;
  const SyntheticCheckpoint checkpoint(MorphScene::spec());
  const Form form = MorphScene::form_of(40, 1);
  const std::int64_t pages = form_pages(checkpoint.spec(), form, MorphScene::kPageBytes);
  const WorkerOptions options{
      .form = form,
      .devices = {{.threads = 2}},
      .max_step_tokens = 100,
      .max_positions = 256,
      .pages = PageBudget{MorphScene::kPageBytes, pages},
      .read_component =
          [&](const ComponentVariant& which, std::span<std::byte> memory, const Pace& pace) {
            seen.nice_while_read.push_back(nice_of(0));
            return MorphScene::read_from(checkpoint, which, memory, [&](std::int64_t bytes) {
              ++seen.pieces;
              return pace(bytes);
            });
          },
      .await_turn = std::move(await_turn)};
  const auto worker =
      CpuWorker::create(options, checkpoint, {}, [](const StepResult&) {},
                        {.ready = [](const MorphReady&) {}, .done = [](MorphDone) {}});
  EXPECT_TRUE(worker.ok()) << worker.error().message;
  seen.normal_later = all_threads_have(nice_of(0));
  seen.threads_later = count_threads(nice_of(0)).first;
  return seen;
}

// The embeddings, and two halves of each layer.
const std::size_t kComponentsOfScene = 7;

TEST(LoadTurns, OnlyLoadingHasALowPriority) {
  const int normal = nice_of(0);
  const LoadedScene seen = load_scene([] {});
  EXPECT_EQ(seen.nice_while_read, std::vector(kComponentsOfScene, std::min(normal + 10, 19)));
  EXPECT_TRUE(seen.normal_later);
  EXPECT_GE(seen.threads_later, 3);  // this one, the device's and its second one
  EXPECT_GE(seen.pieces, static_cast<int>(kComponentsOfScene));
}

// So a model that a request wakes is ready as soon as it can.
TEST(LoadTurns, WithoutTurnsLoadingHasTheCallersPriority) {
  const LoadedScene seen = load_scene({});
  EXPECT_EQ(seen.nice_while_read, std::vector(kComponentsOfScene, nice_of(0)));
}

TEST(LoadTurns, ATurnIsAskedForAfterSomeWork) {
  int turns = 0;
  std::int64_t pieces = 0;
  load_in_turns([&] { ++turns; },
                [&](const cpu::MayGoOn& may_go_on) {
                  EXPECT_TRUE(may_go_on());
                  EXPECT_EQ(turns, 0) << "nothing is done yet";
                  while (turns < 3) {
                    EXPECT_TRUE(may_go_on());
                    ++pieces;
                  }
                  return true;
                });
  EXPECT_GT(pieces, 3) << "not after each piece";
}

}  // namespace
}  // namespace protean
