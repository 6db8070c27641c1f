#include "model/profile_database.h"

#include <sqlite3.h>

#include <boost/json/serialize.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cost/configuration_cost.h"
#include "cost/fit.h"
#include "model/json_file.h"
#include "model/sql_statement.h"

namespace protean {
namespace {

constexpr const char* kFileName = "profiles.sqlite";
constexpr int kWaitMs = 5000;  // for another process that writes
// The format of the cost column and of the steps that were timed for it. Rows of another format are
// not read.
constexpr int kCostFormat = 3;

// A table is created once; its name changes with its columns.
constexpr const char* kTable =
    "CREATE TABLE IF NOT EXISTS step_cost (model TEXT, cpu TEXT, threads INTEGER, kv TEXT, "
    "small_pages INTEGER, version TEXT, format INTEGER, origin TEXT, precisions TEXT, cost TEXT, "
    "saved INTEGER, "
    "PRIMARY KEY (model, cpu, threads, kv, small_pages, version, format, origin, precisions)) "
    "WITHOUT ROWID";
constexpr const char* kMapTable =
    "CREATE TABLE IF NOT EXISTS configuration_map (model TEXT, devices TEXT, batch INTEGER, "
    "prompt_tokens INTEGER, output_tokens INTEGER, version TEXT, place INTEGER, tensor INTEGER, "
    "stages INTEGER, weights TEXT, method TEXT, kv TEXT, pruning INTEGER, pruned_percent INTEGER, "
    "ttft_us REAL, tpot_us REAL, block_bytes INTEGER, total_bytes INTEGER, rests_on TEXT, "
    "PRIMARY KEY (model, devices, batch, prompt_tokens, output_tokens, tensor, stages, weights, "
    "method, kv, pruning, pruned_percent)) WITHOUT ROWID";
constexpr const char* kQualityTable =
    "CREATE TABLE IF NOT EXISTS configuration_quality (model TEXT, weights TEXT, method TEXT, "
    "kv TEXT, pruning INTEGER, pruned_percent INTEGER, perplexity_ratio REAL, "
    "PRIMARY KEY (model, weights, method, kv, pruning, pruned_percent)) WITHOUT ROWID";
// The map's table before it knew versions.
constexpr const char* kFormerMap = "DROP TABLE IF EXISTS configuration_estimates";
constexpr const char* kStepTable =
    "CREATE TABLE IF NOT EXISTS fingerprint_time (model TEXT, cpu TEXT, threads INTEGER, kv TEXT, "
    "small_pages INTEGER, version TEXT, format INTEGER, step TEXT, us REAL)";
constexpr const char* kKeepStep = "INSERT INTO fingerprint_time VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr const char* kStepTimes =
    "SELECT us FROM fingerprint_time WHERE model = ? AND cpu = ? AND threads = ? AND kv = ? AND "
    "small_pages = ? AND version = ? AND format = ? AND step = ? ORDER BY rowid";
constexpr const char* kForgetSteps =
    "DELETE FROM fingerprint_time WHERE model = ? AND cpu = ? AND threads = ? AND kv = ? AND "
    "small_pages = ? AND version = ? AND format = ?";
constexpr const char* kSave =
    "INSERT OR REPLACE INTO step_cost VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
    "(SELECT ifnull(max(saved), 0) + 1 FROM step_cost))";
constexpr const char* kLoad =
    "SELECT cost FROM step_cost WHERE model = ? AND cpu = ? AND threads = ? AND kv = ? AND "
    "small_pages = ? AND version = ? AND format = ? ORDER BY CASE origin WHEN 'whole model' THEN 0 "
    "WHEN 'fingerprint' "
    "THEN 1 ELSE 2 END, saved DESC";

void bind(SqlStatement& statement, const StepCostKey& key) {
  statement.bind(key.model.hex());
  statement.bind(key.cpu);
  statement.bind(key.threads);
  statement.bind(to_string(key.kv));
  statement.bind(key.small_pages ? 1 : 0);
  statement.bind(key.version);
  statement.bind(kCostFormat);
}

std::string_view origin_of(const MachineStepCost& cost) {
  if (cost.origin == StepCostOrigin::kFingerprint) {
    return "fingerprint";
  }
  return cost.cpu_time ? "whole model, processor time" : "whole model";
}

std::string precisions_of(const StepCost& cost) {
  std::string names;
  for (const Precision precision : kPrecisions) {
    if (cost.of(precision).is_known()) {
      names += (names.empty() ? "" : ",") + std::string(to_string(precision));
    }
  }
  return names;
}

bool covers_all(const StepCost& cost, std::span<const Precision> layers) {
  for (const Precision precision : layers) {
    StepPrecision whole{.embeddings = default_embeddings_precision(precision)};
    whole.layers[index_of(precision)] = 1;
    if (!covers(cost, whole)) {
      return false;
    }
  }
  return true;
}

}  // namespace

Error ProfileDatabase::error(std::string_view doing) const {
  const int code = sqlite3_errcode(handle_);
  const bool damaged = code == SQLITE_NOTADB || code == SQLITE_CORRUPT;
  return make_error(damaged ? ErrorCode::kCorrupt : ErrorCode::kUnavailable,
                    "{} cannot be {}: {}{}", name_, doing, sqlite3_errmsg(handle_),
                    damaged ? ": delete it and measure again" : "");
}

bool ProfileDatabase::exists(const std::filesystem::path& directory) {
  std::error_code unknown;
  return std::filesystem::exists(directory / kFileName, unknown);
}

Error ProfileDatabase::never_measured(const StepCostKey& key) {
  return make_error(ErrorCode::kNotFound,
                    "steps of this model with {} threads on {} were never measured: run `protean "
                    "profile --steps`",
                    key.threads, key.cpu);
}

Result<std::unique_ptr<ProfileDatabase>> ProfileDatabase::open(
    const std::filesystem::path& directory) {
  std::error_code ignored;  // opening the file fails too
  std::filesystem::create_directories(directory, ignored);
  const std::string path = (directory / kFileName).string();
  sqlite3* handle = nullptr;
  const int opened =
      sqlite3_open_v2(path.c_str(), &handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  std::unique_ptr<ProfileDatabase> database(new ProfileDatabase(handle, path));
  if (opened != SQLITE_OK) {
    return database->error("opened");
  }
  sqlite3_busy_timeout(handle, kWaitMs);
  if (const Status prepared = database->prepare_tables(); !prepared.ok()) {
    return prepared.error();
  }
  return database;
}

ProfileDatabase::~ProfileDatabase() {
  sqlite3_close(handle_);
}

Status ProfileDatabase::prepare_tables() {
  for (const char* statement : {kTable, kMapTable, kQualityTable, kStepTable}) {
    if (sqlite3_exec(handle_, statement, nullptr, nullptr, nullptr) != SQLITE_OK) {
      return error("read");
    }
  }
  (void)sqlite3_exec(handle_, kFormerMap, nullptr, nullptr, nullptr);  // one that stays is not read
  return {};
}

Status ProfileDatabase::save(const StepCostKey& key, const MachineStepCost& cost) {
  SqlStatement save(handle_, kSave);
  bind(save, key);
  save.bind(origin_of(cost));
  save.bind(precisions_of(cost.cost));
  save.bind(boost::json::serialize(to_json(cost)));
  return save.step() == SQLITE_DONE ? Status() : Status(error("written"));
}

Result<MachineStepCost> ProfileDatabase::load(const StepCostKey& key,
                                              std::span<const Precision> layers) const {
  SqlStatement load(handle_, kLoad);
  bind(load, key);
  std::optional<MachineStepCost> found;
  int stepped = load.step();
  for (; stepped == SQLITE_ROW; stepped = load.step()) {
    const auto object = parse_json_object(load.text(0), name_);
    auto cost = object.ok() ? parse_step_cost(*object, name_) : object.error();
    if (!cost.ok() || !covers_all(cost->cost, layers)) {
      continue;
    }
    if (!found) {
      found = *cost;
    }
    add_sums(cost->cost, found->cost);
  }
  if (stepped != SQLITE_DONE) {
    return error("read");
  }
  return found ? Result(*std::move(found)) : never_measured(key);
}

Status ProfileDatabase::keep_step(const StepCostKey& key, std::string_view step, double us) {
  SqlStatement keep(handle_, kKeepStep);
  bind(keep, key);
  keep.bind(step);
  keep.bind(us);
  return keep.step() == SQLITE_DONE ? Status() : Status(error("written"));
}

Result<std::vector<double>> ProfileDatabase::step_times(const StepCostKey& key,
                                                        std::string_view step) const {
  SqlStatement select(handle_, kStepTimes);
  bind(select, key);
  select.bind(step);
  std::vector<double> times_us;
  int stepped = select.step();
  for (; stepped == SQLITE_ROW; stepped = select.step()) {
    times_us.push_back(select.number(0));
  }
  return stepped == SQLITE_DONE ? Result(std::move(times_us)) : error("read");
}

Status ProfileDatabase::forget_steps(const StepCostKey& key) {
  SqlStatement forget(handle_, kForgetSteps);
  bind(forget, key);
  return forget.step() == SQLITE_DONE ? Status() : Status(error("written"));
}

}  // namespace protean
