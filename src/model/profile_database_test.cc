#include "model/profile_database.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <fstream>
#include <optional>

namespace protean {
namespace {

namespace fs = std::filesystem;

class ProfileDatabaseTest : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<ProfileDatabase> open() {
    auto database = ProfileDatabase::open(folder_);
    EXPECT_TRUE(database.ok()) << database.error().message;
    return *std::move(database);
  }

  static MachineStepCost cost_at(std::initializer_list<Precision> precisions, double us,
                                 StepCostOrigin origin = StepCostOrigin::kFingerprint) {
    MachineStepCost cost{.cpu = "Abacus, vectors", .threads = 2, .origin = origin};
    cost.cost.fixed_us = us;
    for (const Precision precision : precisions) {
      cost.cost.of(precision).step_us = us;
      cost.cost.logits_at(default_embeddings_precision(precision)).step_us = us;
    }
    return cost;
  }

  const fs::path folder_ =
      fs::path(testing::TempDir()) / fmt::format("profile_database_test.{}", ::getpid());
  const StepCostKey key_{.cpu = "Abacus, vectors", .threads = 2, .version = "1"};
};

constexpr std::array kBoth = {Precision::kBf16, Precision::kW8A8};

TEST_F(ProfileDatabaseTest, KeepsACostFromOneProcessToTheNext) {
  ASSERT_TRUE(open()->save(key_, cost_at({Precision::kBf16, Precision::kW8A8}, 1.0 / 3)).ok());
  const auto kept = open()->load(key_, kBoth);
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  EXPECT_EQ(kept->cpu, "Abacus, vectors");
  EXPECT_EQ(kept->threads, 2);
  EXPECT_EQ(kept->origin, StepCostOrigin::kFingerprint);
  EXPECT_NEAR(kept->cost.of(Precision::kW8A8).step_us, 1.0 / 3, 1e-12);
  EXPECT_EQ(kept->cost.of(Precision::kW8A8).bend_tokens, 16);
}

TEST_F(ProfileDatabaseTest, KeepsTheStepsOfAFingerprintUntilItIsSaved) {
  ASSERT_TRUE(open()->keep_step(key_, "one", 2.5).ok());
  ASSERT_TRUE(open()->keep_step(key_, "one", 1.5).ok());
  StepCostKey other = key_;
  other.threads = 3;
  const auto database = open();
  EXPECT_EQ(*database->step_times(key_, "one"), (std::vector{2.5, 1.5}));
  EXPECT_TRUE(database->step_times(key_, "two")->empty());
  EXPECT_TRUE(database->step_times(other, "one")->empty());
  ASSERT_TRUE(database->forget_steps(other).ok());
  EXPECT_EQ(database->step_times(key_, "one")->size(), 2U);
  ASSERT_TRUE(database->forget_steps(key_).ok());
  EXPECT_TRUE(open()->step_times(key_, "one")->empty());
}

TEST_F(ProfileDatabaseTest, KnowsOnlyWhatItWasAskedToKeep) {
  const auto database = open();
  ASSERT_TRUE(database->save(key_, cost_at({Precision::kBf16}, 1)).ok());
  EXPECT_TRUE(database->load(key_, std::span(kBoth).first(1)).ok());
  EXPECT_EQ(database->load(key_, kBoth).error().code, ErrorCode::kNotFound);
  for (const auto& change : std::initializer_list<void (*)(StepCostKey&)>{
           [](StepCostKey& key) { key.model.bytes[3] = std::byte{1}; },
           [](StepCostKey& key) { key.cpu = "Abacus, AMX"; },
           [](StepCostKey& key) { key.threads = 1; },
           [](StepCostKey& key) { key.kv = KvPrecision::kInt8; },
           [](StepCostKey& key) { key.version = "2"; }}) {
    StepCostKey other = key_;
    change(other);
    EXPECT_EQ(database->load(other, {}).error().code, ErrorCode::kNotFound);
  }
}

TEST_F(ProfileDatabaseTest, PrefersTheWholeModelAndThenTheLast) {
  const auto database = open();
  const auto kept_us = [&] { return database->load(key_, {})->cost.fixed_us; };
  ASSERT_TRUE(database->save(key_, cost_at({Precision::kBf16}, 1)).ok());
  ASSERT_TRUE(database->save(key_, cost_at({Precision::kW8A8}, 2)).ok());
  EXPECT_EQ(kept_us(), 2);
  ASSERT_TRUE(database->save(key_, cost_at({Precision::kBf16}, 3)).ok());
  EXPECT_EQ(kept_us(), 3) << "it replaces the first";
  MachineStepCost processor_time = cost_at({Precision::kBf16}, 4, StepCostOrigin::kWholeModel);
  processor_time.cpu_time = true;
  ASSERT_TRUE(database->save(key_, processor_time).ok());
  EXPECT_EQ(kept_us(), 3);
  ASSERT_TRUE(
      database->save(key_, cost_at({Precision::kBf16}, 5, StepCostOrigin::kWholeModel)).ok());
  ASSERT_TRUE(database->save(key_, cost_at({Precision::kBf16}, 6)).ok());
  EXPECT_EQ(kept_us(), 5);
}

TEST_F(ProfileDatabaseTest, TimesOfTheWholeModelHaveTheSumsOfAFingerprint) {
  const auto database = open();
  MachineStepCost fingerprint = cost_at({Precision::kBf16, Precision::kW8A8}, 1);
  fingerprint.cost.of(Precision::kBf16).sums = Transfer{.us = 1.0 / 3, .bytes_per_us = 7};
  fingerprint.cost.logits_at(Precision::kBf16).shared_us = 2.0 / 3;
  ASSERT_TRUE(database->save(key_, fingerprint).ok());
  ASSERT_TRUE(
      database->save(key_, cost_at({Precision::kBf16}, 5, StepCostOrigin::kWholeModel)).ok());
  const auto kept = database->load(key_, std::span(kBoth).first(1));
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  EXPECT_EQ(kept->cost.fixed_us, 5);
  const std::optional<Transfer> sums = kept->cost.of(Precision::kBf16).sums;
  ASSERT_TRUE(sums.has_value());
  EXPECT_NEAR(sums->us, 1.0 / 3, 1e-12);
  EXPECT_EQ(sums->bytes_per_us, 7);
  EXPECT_NEAR(kept->cost.logits_at(Precision::kBf16).shared_us.value_or(0), 2.0 / 3, 1e-12);
  EXPECT_FALSE(database->load(key_, kBoth)->cost.of(Precision::kW8A8).sums.has_value());
}

TEST_F(ProfileDatabaseTest, TwoWritersDoNotLoseEachOthersRows) {
  const auto one = open();
  const auto other = open();
  ASSERT_TRUE(one->save(key_, cost_at({Precision::kBf16}, 1)).ok());
  ASSERT_TRUE(other->save(key_, cost_at({Precision::kW8A8}, 2)).ok());
  EXPECT_TRUE(one->load(key_, std::array{Precision::kW8A8}).ok());
  EXPECT_TRUE(other->load(key_, std::array{Precision::kBf16}).ok());
}

// No table can be dropped by the name of a view, as none can be in a file that is only read.
TEST_F(ProfileDatabaseTest, AFormerTableThatCannotBeDroppedStays) {
  ASSERT_TRUE(open()->save(key_, cost_at({Precision::kBf16}, 1)).ok());
  sqlite3* file = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ / "profiles.sqlite").c_str(), &file), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(file, "CREATE VIEW configuration_estimates AS SELECT 1", nullptr, nullptr,
                         nullptr),
            SQLITE_OK);
  sqlite3_close(file);
  const auto database = ProfileDatabase::open(folder_);
  ASSERT_TRUE(database.ok()) << database.error().message;
  EXPECT_TRUE((*database)->load(key_, std::span(kBoth).first(1)).ok());
}

TEST_F(ProfileDatabaseTest, RefusesAFileThatIsNoDatabase) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "profiles.sqlite") << std::string(2000, 'x');
  const auto database = ProfileDatabase::open(folder_);
  ASSERT_FALSE(database.ok());
  EXPECT_EQ(database.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(database.error().message.find("delete it"), std::string::npos);
}

}  // namespace
}  // namespace protean
