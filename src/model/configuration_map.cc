// The configuration maps of the profile database.

#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "model/profile_database.h"
#include "model/sql_statement.h"

namespace protean {
namespace {

constexpr const char* kKey =
    "model = ? AND devices = ? AND batch = ? AND prompt_tokens = ? AND output_tokens = ?";
constexpr const char* kInsert =
    "INSERT INTO configuration_map VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
    "?)";

constexpr std::array kMethods = {WeightMethod::kNearest, WeightMethod::kGptq, WeightMethod::kAwq};
constexpr std::array kKvs = {KvPrecision::kF32, KvPrecision::kBf16, KvPrecision::kInt8};
constexpr std::array kPrunings = {PruningKind::kNone, PruningKind::kTwoOfFour,
                                  PruningKind::kStructured};

// Binds what kKey asks for.
void bind_key(SqlStatement& statement, const ConfigurationMapKey& key) {
  statement.bind(key.model);
  statement.bind(key.devices);
  statement.bind(key.load.batch);
  statement.bind(key.load.prompt_tokens);
  statement.bind(key.load.output_tokens);
}

// Returns the value whose text a column has; nothing if none has it.
template <class Values>
auto named(const Values& values, std::string_view text) {
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](auto value) { return to_string(value) == text; });
  return found == values.end() ? std::nullopt : std::optional(*found);
}

// Reads the columns `weights`, `method`, `kv`, `pruning` and `pruned_percent`, of which the first
// is at `column`. Nothing if another version wrote words that are not known.
std::optional<Configuration> read_stored(const SqlStatement& row, int column) {
  const auto weights = parse_precision(row.text(column));
  const auto method = named(kMethods, row.text(column + 1));
  const auto kv = named(kKvs, row.text(column + 2));
  const std::int64_t pruning = row.integer(column + 3);
  if (!weights.ok() || !method || !kv || pruning < 0 || pruning >= std::ssize(kPrunings)) {
    return std::nullopt;
  }
  return Configuration{.weights = *weights,
                       .method = *method,
                       .kv = *kv,
                       .pruning = {.kind = kPrunings[static_cast<std::size_t>(pruning)],
                                   .percent = static_cast<int>(row.integer(column + 4))}};
}

// Reads the columns from `tensor` on.
std::optional<MappedConfiguration> read_row(const SqlStatement& row) {
  auto configuration = read_stored(row, 2);
  if (!configuration) {
    return std::nullopt;
  }
  configuration->tensor = static_cast<int>(row.integer(0));
  configuration->stages = static_cast<int>(row.integer(1));
  return MappedConfiguration{.configuration = *configuration,
                             .latency = {.ttft_us = row.number(7), .tpot_us = row.number(8)},
                             .block_bytes = row.integer(9),
                             .total_bytes = row.integer(10),
                             .rests_on = std::string(row.text(11))};
}

// Binds the same columns as read_stored() reads.
void bind_stored(SqlStatement& statement, const Configuration& configuration) {
  statement.bind(to_string(configuration.weights));
  statement.bind(to_string(configuration.method));
  statement.bind(to_string(configuration.kv));
  statement.bind(
      static_cast<int>(std::find(kPrunings.begin(), kPrunings.end(), configuration.pruning.kind) -
                       kPrunings.begin()));
  statement.bind(configuration.pruning.percent);
}

void bind_row(SqlStatement& insert, int place, const MappedConfiguration& row) {
  const Configuration& configuration = row.configuration;
  insert.bind(place);
  insert.bind(configuration.tensor);
  insert.bind(configuration.stages);
  bind_stored(insert, configuration);
  insert.bind(row.latency.ttft_us);
  insert.bind(row.latency.tpot_us);
  insert.bind(row.block_bytes);
  insert.bind(row.total_bytes);
  insert.bind(row.rests_on);
}

}  // namespace

Status ProfileDatabase::save(const ConfigurationMapKey& key,
                             std::span<const MappedConfiguration> configurations) {
  if (sqlite3_exec(handle_, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) != SQLITE_OK) {
    return error("written");
  }
  const auto write = [&]() -> Status {
    SqlStatement remove(handle_,
                        fmt::format("DELETE FROM configuration_map WHERE {}", kKey).c_str());
    bind_key(remove, key);
    if (remove.step() != SQLITE_DONE) {
      return error("written");
    }
    int place = 0;
    for (const MappedConfiguration& row : configurations) {
      SqlStatement insert(handle_, kInsert);
      bind_key(insert, key);
      insert.bind(key.version);
      bind_row(insert, place++, row);
      if (insert.step() != SQLITE_DONE) {
        return error("written");
      }
    }
    return {};
  };
  Status written = write();
  const char* const end = written.ok() ? "COMMIT" : "ROLLBACK";
  if (sqlite3_exec(handle_, end, nullptr, nullptr, nullptr) != SQLITE_OK && written.ok()) {
    return error("written");
  }
  return written;
}

Result<std::vector<MappedConfiguration>> ProfileDatabase::configurations(
    const ConfigurationMapKey& key) const {
  SqlStatement select(
      handle_, fmt::format("SELECT tensor, stages, weights, method, kv, pruning, pruned_percent, "
                           "ttft_us, tpot_us, block_bytes, total_bytes, rests_on "
                           "FROM configuration_map WHERE {} AND version = ? ORDER BY place",
                           kKey)
                   .c_str());
  bind_key(select, key);
  select.bind(key.version);
  std::vector<MappedConfiguration> rows;
  int stepped = select.step();
  for (; stepped == SQLITE_ROW; stepped = select.step()) {
    if (auto row = read_row(select)) {
      rows.push_back(*std::move(row));
    }
  }
  if (stepped != SQLITE_DONE) {
    return error("read");
  }
  return rows;
}

Result<std::vector<ConfigurationMapKey>> ProfileDatabase::configuration_maps(
    const std::string& model, const std::string& version) const {
  SqlStatement select(handle_,
                      "SELECT DISTINCT batch, prompt_tokens, output_tokens, devices FROM "
                      "configuration_map WHERE model = ? AND version = ? ORDER BY 1, 2, 3, 4");
  select.bind(model);
  select.bind(version);
  std::vector<ConfigurationMapKey> keys;
  int stepped = select.step();
  for (; stepped == SQLITE_ROW; stepped = select.step()) {
    keys.push_back({.model = model,
                    .devices = std::string(select.text(3)),
                    .load = {.batch = static_cast<int>(select.integer(0)),
                             .prompt_tokens = static_cast<int>(select.integer(1)),
                             .output_tokens = static_cast<int>(select.integer(2))},
                    .version = version});
  }
  return stepped == SQLITE_DONE ? Result(std::move(keys)) : error("read");
}

Status ProfileDatabase::save_quality(const std::string& model, const Configuration& stored,
                                     double perplexity_ratio) {
  SqlStatement insert(handle_,
                      "INSERT OR REPLACE INTO configuration_quality VALUES (?, ?, ?, ?, ?, ?, ?)");
  insert.bind(model);
  bind_stored(insert, stored);
  insert.bind(perplexity_ratio);
  return insert.step() == SQLITE_DONE ? Status() : Status(error("written"));
}

Result<std::vector<MeasuredQuality>> ProfileDatabase::qualities(const std::string& model) const {
  SqlStatement select(handle_,
                      "SELECT weights, method, kv, pruning, pruned_percent, perplexity_ratio FROM "
                      "configuration_quality WHERE model = ?");
  select.bind(model);
  std::vector<MeasuredQuality> found;
  int stepped = select.step();
  for (; stepped == SQLITE_ROW; stepped = select.step()) {
    if (const auto configuration = read_stored(select, 0)) {
      found.push_back({*configuration, select.number(5)});
    }
  }
  return stepped == SQLITE_DONE ? Result(std::move(found)) : error("read");
}

}  // namespace protean
