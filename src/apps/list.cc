#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <memory>
#include <string>
#include <vector>

#include "apps/options.h"
#include "base/units.h"
#include "hub/cache.h"
#include "hub/needed_files.h"
#include "hub/settings.h"
#include "measure/json_line.h"
#include "terminal/output.h"

namespace protean {
namespace {

namespace json = boost::json;

// A model in the cache that can be served under `name`.
struct ListedModel {
  std::string name;
  std::string commit;
  std::int64_t bytes = 0;
  bool complete = true;
};

std::int64_t bytes_of(const hub::CachedSnapshot& snapshot) {
  std::int64_t bytes = 0;
  for (const auto& [path, size] : snapshot.file_bytes) {
    bytes += size;
  }
  return bytes;
}

// The models of one snapshot: the safetensors, or each GGUF.
std::vector<ListedModel> models_in(const hub::Cache& cache, const std::string& repo,
                                   const hub::CachedSnapshot& snapshot) {
  const bool is_main =
      std::find(snapshot.refs.begin(), snapshot.refs.end(), "main") != snapshot.refs.end();
  const std::string revision =
      is_main ? "" : "@" + (snapshot.refs.empty() ? snapshot.commit : snapshot.refs.front());
  std::vector<ListedModel> models;
  std::int64_t gguf_bytes = 0;
  for (const auto& [path, size] : snapshot.file_bytes) {
    if (path.ends_with(".gguf")) {
      gguf_bytes += size;
      models.push_back({fmt::format("{}:{}{}", repo, path.substr(path.rfind('/') + 1), revision),
                        snapshot.commit, size, true});
    }
  }
  if (models.empty() || snapshot.file_bytes.contains("config.json")) {
    const auto model = hub::look_into_snapshot({.repo = repo, .file = {}, .revision = {}},
                                               cache.snapshot(repo, snapshot.commit));
    const bool complete = model.ok() && model->missing.empty();
    if (models.empty() || complete) {
      models.push_back(
          {repo + revision, snapshot.commit, bytes_of(snapshot) - gguf_bytes, complete});
    }
  }
  return models;
}

json::object to_json(const ListedModel& model) {
  return {{"name", model.name},
          {"commit", model.commit},
          {"bytes", model.bytes},
          {"complete", model.complete}};
}

int run_list(bool as_json) {
  const auto settings = hub::read_settings(hub::process_environment);
  if (!settings.ok()) {
    return exit_with(settings.error());
  }
  const hub::Cache cache(settings->cache);
  std::vector<ListedModel> models;
  for (const hub::CachedRepo& repo : cache.list()) {
    for (const hub::CachedSnapshot& snapshot : repo.snapshots) {
      for (ListedModel& model : models_in(cache, repo.repo, snapshot)) {
        models.push_back(std::move(model));
      }
    }
    if (repo.snapshots.empty()) {
      models.push_back({repo.repo, "", repo.bytes, false});
    }
  }
  if (as_json) {
    json::array rows;
    for (const ListedModel& model : models) {
      rows.push_back(to_json(model));
    }
    print_text(json_line({{"cache", settings->cache.string()}, {"models", std::move(rows)}}));
    return 0;
  }
  std::size_t width = 24;
  for (const ListedModel& model : models) {
    width = std::max(width, model.name.size());
  }
  if (!models.empty()) {
    print_text(fmt::format("{:<{}}  {:<12}  {:>10}\n", "name", width, "commit", "size"));
  }
  for (const ListedModel& model : models) {
    print_text(fmt::format("{:<{}}  {:<12}  {:>10}{}\n", model.name, width,
                           model.commit.substr(0, 12), format_bytes(model.bytes),
                           model.complete ? "" : "  incomplete"));
  }
  return 0;
}

}  // namespace

void add_list(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand("list", "List the models in the cache");
  auto as_json = std::make_shared<bool>(false);
  app->add_flag("--json", *as_json, "Print one JSON object")->group("Output");
  app->footer("The cache is HF_HUB_CACHE, otherwise hub/ in HF_HOME or ~/.cache/huggingface.");
  app->callback([as_json, &exit_code] { exit_code = run_list(*as_json); });
}

}  // namespace protean
