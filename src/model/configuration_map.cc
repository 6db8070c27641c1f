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

// Reads the columns from `tensor` on. Nothing if another version wrote words that are not known.
std::optional<MappedConfiguration> read_row(const SqlStatement& row) {
  const auto weights = parse_precision(row.text(2));
  const auto method = named(kMethods, row.text(3));
  const auto kv = named(kKvs, row.text(4));
  const std::int64_t pruning = row.integer(5);
  if (!weights.ok() || !method || !kv || pruning < 0 || pruning >= std::ssize(kPrunings)) {
    return std::nullopt;
  }
  MappedConfiguration read{
      .configuration = {.tensor = static_cast<int>(row.integer(0)),
                        .stages = static_cast<int>(row.integer(1)),
                        .weights = *weights,
                        .method = *method,
                        .kv = *kv,
                        .pruning = {.kind = kPrunings[static_cast<std::size_t>(pruning)],
                                    .percent = static_cast<int>(row.integer(6))}},
      .latency = {.ttft_us = row.number(7), .tpot_us = row.number(8)},
      .block_bytes = row.integer(9),
      .total_bytes = row.integer(10),
      .rests_on = std::string(row.text(12))};
  if (!row.text(11).empty()) {
    read.perplexity_ratio = row.number(11);
  }
  return read;
}

void bind_row(SqlStatement& insert, int place, const MappedConfiguration& row) {
  const Configuration& configuration = row.configuration;
  insert.bind(place);
  insert.bind(configuration.tensor);
  insert.bind(configuration.stages);
  insert.bind(to_string(configuration.weights));
  insert.bind(to_string(configuration.method));
  insert.bind(to_string(configuration.kv));
  insert.bind(
      static_cast<int>(std::find(kPrunings.begin(), kPrunings.end(), configuration.pruning.kind) -
                       kPrunings.begin()));
  insert.bind(configuration.pruning.percent);
  insert.bind(row.latency.ttft_us);
  insert.bind(row.latency.tpot_us);
  insert.bind(row.block_bytes);
  insert.bind(row.total_bytes);
  if (row.perplexity_ratio) {
    insert.bind(*row.perplexity_ratio);
  } else {
    insert.skip();
  }
  insert.bind(row.rests_on);
}

}  // namespace

Status ProfileDatabase::save(const ConfigurationMapKey& key,
                             std::span<const MappedConfiguration> configurations) {
  if (sqlite3_exec(handle_, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) != SQLITE_OK) {
    return error("written");
  }
  const auto write = [&]() -> Status {
    const auto kept = this->configurations(key);
    if (!kept.ok()) {
      return kept.error();
    }
    SqlStatement remove(handle_,
                        fmt::format("DELETE FROM configuration_map WHERE {}", kKey).c_str());
    bind_key(remove, key);
    if (remove.step() != SQLITE_DONE) {
      return error("written");
    }
    int place = 0;
    for (MappedConfiguration row : configurations) {
      const auto before = std::find_if(kept->begin(), kept->end(), [&](const auto& old) {
        return old.configuration == row.configuration;
      });
      if (!row.perplexity_ratio && before != kept->end()) {
        row.perplexity_ratio = before->perplexity_ratio;
      }
      SqlStatement insert(handle_, kInsert);
      bind_key(insert, key);
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
                           "ttft_us, tpot_us, block_bytes, total_bytes, perplexity_ratio, rests_on "
                           "FROM configuration_map WHERE {} ORDER BY place",
                           kKey)
                   .c_str());
  bind_key(select, key);
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

}  // namespace protean
