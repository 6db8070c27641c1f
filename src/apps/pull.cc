#include <memory>
#include <string>

#include "apps/options.h"
#include "replica/model_place.h"
#include "terminal/output.h"

namespace protean {
namespace {

int run_pull(const std::string& model) {
  const auto name = hub::parse_model_name(model);
  const auto settings = hub::read_settings(hub::process_environment);
  if (!name.ok() || !settings.ok()) {
    return exit_with(name.ok() ? settings.error() : name.error());
  }
  const auto path = pull_model(*settings, *name);
  if (!path.ok()) {
    return exit_with(path.error());
  }
  print_text(path->string() + "\n");
  return 0;
}

}  // namespace

void add_pull(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand(
      "pull", "Fetch a model from a hub into the cache and print where it lies");
  auto model = std::make_shared<std::string>();
  app->add_option("NAME", *model,
                  "ORG/NAME, ORG/NAME@REVISION, or ORG/NAME:FILE for one GGUF of a repository, "
                  "named by its quantisation or its file")
      ->type_name("NAME")
      ->required();
  app->footer(
      "Example: protean pull Qwen/Qwen3-0.6B\n"
      "         protean pull Qwen/Qwen3-0.6B-GGUF:Q8_0\n"
      "HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HTTPS_PROXY, NO_PROXY and\n"
      "SSL_CERT_FILE mean what they mean to other programs. The cache is that of huggingface_hub.");
  app->callback([model, &exit_code] { exit_code = run_pull(*model); });
}

}  // namespace protean
