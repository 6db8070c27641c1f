#include <fmt/ranges.h>

#include <memory>
#include <string>

#include "apps/options.h"
#include "base/units.h"
#include "hub/cache.h"
#include "hub/needed_files.h"
#include "hub/settings.h"
#include "terminal/output.h"

namespace protean {
namespace {

// Prints one revision: where it lies, what it lacks, and its files.
void print_snapshot(const hub::Cache& cache, const hub::ModelName& name,
                    const hub::CachedSnapshot& snapshot) {
  const auto path = cache.snapshot(name.repo, snapshot.commit);
  print_row("commit", "{}{}", snapshot.commit,
            snapshot.refs.empty() ? "" : fmt::format(" ({})", fmt::join(snapshot.refs, ", ")));
  print_row("path", "{}", path.string());
  const auto model = hub::look_into_snapshot(name, path);
  if (!model.ok()) {
    print_row("incomplete", "{}", model.error().message);
  } else if (!model->missing.empty()) {
    print_row("incomplete", "{} missing", fmt::join(model->missing, ", "));
  }
  for (const auto& [file, bytes] : snapshot.file_bytes) {
    print_row("", "{:<48}{:>12}", file, format_bytes(bytes));
  }
}

int run_show(const std::string& text) {
  const auto name = hub::parse_model_name(text);
  const auto settings = hub::read_settings(hub::process_environment);
  if (!name.ok() || !settings.ok()) {
    return exit_with(name.ok() ? settings.error() : name.error());
  }
  const hub::Cache cache(settings->cache);
  const auto repo = cache.find(name->repo);
  const auto commit = cache.commit_of(*name);
  if (!repo || (!name->revision.empty() && !commit)) {
    return exit_with(
        {ErrorCode::kNotFound, fmt::format("{} is not in the cache {}: protean pull {} fetches it",
                                           text, settings->cache.string(), text)});
  }
  print_row("model", "{}", name->repo);
  print_row("size", "{}{}", format_bytes(repo->bytes),
            repo->incomplete == 0 ? "" : fmt::format(", {} files half there", repo->incomplete));
  for (const hub::CachedSnapshot& snapshot : repo->snapshots) {
    if (name->revision.empty() || snapshot.commit == commit) {
      print_snapshot(cache, *name, snapshot);
    }
  }
  return 0;
}

}  // namespace

void add_show(CLI::App& root, int& exit_code) {
  CLI::App* app =
      root.add_subcommand("show", "Show the revisions and files of a model in the cache");
  auto name = std::make_shared<std::string>();
  app->add_option("NAME", *name, "ORG/NAME or ORG/NAME@REVISION")->type_name("NAME")->required();
  app->footer("protean inspect NAME says what the model is and how much memory it needs.");
  app->callback([name, &exit_code] { exit_code = run_show(*name); });
}

}  // namespace protean
