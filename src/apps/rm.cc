#include <memory>
#include <string>

#include "apps/options.h"
#include "base/units.h"
#include "hub/cache.h"
#include "hub/settings.h"
#include "terminal/output.h"

namespace protean {
namespace {

int run_rm(const std::string& text) {
  const auto name = hub::parse_model_name(text);
  const auto settings = hub::read_settings(hub::process_environment);
  if (!name.ok() || !settings.ok()) {
    return exit_with(name.ok() ? settings.error() : name.error());
  }
  const auto freed = hub::Cache(settings->cache).remove(*name);
  if (!freed.ok()) {
    return exit_with(freed.error());
  }
  print_text(fmt::format("removed {}: {} freed\n", text, format_bytes(*freed)));
  return 0;
}

}  // namespace

void add_rm(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand("rm", "Remove a model from the cache");
  auto name = std::make_shared<std::string>();
  app->add_option("NAME", *name,
                  "ORG/NAME for all revisions, ORG/NAME@REVISION for one, ORG/NAME:FILE for one "
                  "GGUF")
      ->type_name("NAME")
      ->required();
  app->footer("Files that another revision uses stay.");
  app->callback([name, &exit_code] { exit_code = run_rm(*name); });
}

}  // namespace protean
