#include "replica/model_place.h"

#include <csignal>
#include <cstdlib>
#include <functional>

#include "base/log.h"
#include "base/units.h"
#include "host/signal_watcher.h"
#include "hub/cache.h"
#include "terminal/progress.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

// True if the text cannot name a model on a hub, so that it must have been meant as a path.
bool is_path(const std::string& model) {
  return model.starts_with('/') || model.starts_with('.') || model.starts_with('~') ||
         model.find('/') == model.npos || model.find('/') != model.rfind('/');
}

// Runs a pull that tells on standard error how far it is, and that a signal ends.
Result<fs::path> with_progress(const std::string& name,
                               const std::function<Result<fs::path>(const hub::PullEvents&)>& run) {
  const SignalWatcher watcher({SIGINT, SIGTERM}, [&](int signal) {
    clear_bar();
    log::info("{}: stopped; what was fetched is kept, and the next try goes on from there", name);
    std::_Exit(128 + signal);
  });
  const CountProgress bar = progress_bar(name);
  const hub::PullEvents events{
      .on_summary =
          [&](const hub::PullSummary& summary) {
            log::info("{} at {}: {} in {} files, {} to fetch, {} free", name,
                      summary.commit.substr(0, 12), format_bytes(summary.bytes), summary.files,
                      format_bytes(summary.fetch_bytes), format_bytes(summary.free_bytes));
          },
      .on_bytes = bar,
      .on_note =
          [&](const std::string& note) {
            clear_bar();
            log::warning("{}", note);
          }};
  auto path = run(events);
  if (!path.ok()) {
    clear_bar();
  }
  return path;
}

}  // namespace

Result<fs::path> pull_model(const hub::HubSettings& settings, const hub::ModelName& name) {
  return with_progress(hub::to_string(name), [&](const hub::PullEvents& events) {
    return hub::pull(settings, name, events);
  });
}

namespace {

// Fetches a model from the hub that the cache lacks.
using Fetch = std::function<Result<fs::path>(const hub::HubSettings&, const hub::ModelName&)>;

Result<std::string> locate_model(const std::string& model, const Fetch& fetch) {
  std::error_code ignored;
  if (fs::exists(model, ignored) || is_path(model)) {
    return model;  // opening it says whether it exists
  }
  const auto name = hub::parse_model_name(model);
  if (!name.ok()) {
    return make_error(ErrorCode::kNotFound, "{} is no file or folder here, and {}", model,
                      name.error().message);
  }
  const auto settings = hub::read_settings(hub::process_environment);
  if (!settings.ok()) {
    return settings.error();
  }
  const auto cached = hub::find_in_cache(*settings, *name);
  if (cached.ok() && *cached && (*cached)->missing.empty()) {
    return (*cached)->path.string();
  }
  const auto path = fetch(*settings, *name);
  if (!path.ok()) {
    return make_error(path.error().code, "{} is no file or folder here; {}", model,
                      path.error().message);
  }
  return path->string();
}

Status name_place(ModelOptions& options, Result<std::string> path) {
  if (!path.ok()) {
    return path.error();
  }
  if (*path != options.model) {
    options.name = options.model.substr(0, options.model.find('@'));
    options.model = *std::move(path);
  }
  return {};
}

}  // namespace

Result<std::string> locate_model(const std::string& model) {
  return locate_model(model, [&](const hub::HubSettings& settings, const hub::ModelName& name) {
    return with_progress(
        model, [&](const hub::PullEvents& events) { return hub::obtain(settings, name, events); });
  });
}

Status locate_model(ModelOptions& options) {
  return name_place(options, locate_model(options.model));
}

Status find_model(ModelOptions& options) {
  const auto refuse = [&](const hub::HubSettings&, const hub::ModelName&) -> Result<fs::path> {
    return make_error(ErrorCode::kNotFound,
                      "the cache of models from hubs lacks it: run protean pull {}", options.model);
  };
  return name_place(options, locate_model(options.model, refuse));
}

std::string model_name_at(const fs::path& path) {
  if (const auto name = hub::name_of_snapshot(path)) {
    return *name;
  }
  fs::path plain = fs::absolute(path).lexically_normal();
  if (!plain.has_filename()) {
    plain = plain.parent_path();
  }
  return plain.extension() == ".gguf" ? plain.stem() : plain.filename();
}

}  // namespace protean
