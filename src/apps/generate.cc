#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "apps/options.h"
#include "replica/local_client.h"
#include "terminal/output.h"

namespace protean {
namespace {

struct GenerateOptions {
  ModelOptions model;
  std::string prompt;
  int max_tokens = 128;
  float temperature = -1;  // negative = the model's own
  float top_p = -1;
  int top_k = -1;
  float min_p = -1;
  std::uint64_t seed = 0;
  bool ignore_eos = false;
};

Result<Request> make_request(const GenerateOptions& options, const LocalClient& client) {
  const Tokenizer& tokenizer = *client.files().tokenizer;
  const GenerationDefaults& defaults = client.files().generation;
  Request request;
  request.prompt = tokenizer.encode(options.prompt, {});
  if (request.prompt.empty() && tokenizer.bos() >= 0) {
    request.prompt = {tokenizer.bos()};
  }
  if (request.prompt.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--prompt is empty and this model has no BOS token to begin with: give a "
                      "prompt");
  }
  const int room = client.max_model_len() - static_cast<int>(request.prompt.size());
  if (room < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the prompt has {} tokens and the context holds {}: shorten it or raise "
                      "--max-model-len",
                      request.prompt.size(), client.max_model_len());
  }
  request.max_tokens = std::min(options.max_tokens, room);
  request.stop_ids = options.ignore_eos ? std::vector<TokenId>{} : defaults.stop_ids;
  SamplingParams& sampling = request.sampling;
  sampling.temperature =
      options.temperature >= 0 ? options.temperature : defaults.temperature.value_or(1.0F);
  sampling.top_p = options.top_p >= 0 ? options.top_p : defaults.top_p.value_or(1.0F);
  sampling.top_k = options.top_k >= 0 ? options.top_k : defaults.top_k.value_or(0);
  sampling.min_p = options.min_p >= 0 ? options.min_p : defaults.min_p.value_or(0.0F);
  sampling.seed = options.seed;
  return request;
}

int run_generate(const GenerateOptions& options) {
  InterruptibleClient client;
  if (Status opened = client.open(options.model); !opened.ok()) {
    return exit_with(opened.error());
  }
  auto request = make_request(options, *client);
  if (!request.ok()) {
    return exit_with(request.error());
  }
  auto finished = client->run(*std::move(request), options.prompt.empty(), print_text);
  if (::isatty(STDOUT_FILENO) != 0) {
    print_text("\n");  // a pipe gets the continuation alone
  }
  if (!finished.ok()) {
    return exit_with(finished.error());
  }
  if (finished->reason == FinishReason::kFailed) {
    return exit_with({ErrorCode::kInternal, finished->failure});
  }
  return finished->reason == FinishReason::kCancelled ? kExitInterrupted : 0;
}

}  // namespace

void add_generate(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand("generate", "Continue a prompt and print the continuation");
  auto options = std::make_shared<GenerateOptions>();
  options->seed = std::random_device{}();
  app->option_defaults()->group("Text");
  app->add_option("--prompt", options->prompt,
                  "Text to continue; an empty one starts from the beginning-of-sequence token")
      ->type_name("TEXT");
  app->add_option("--max-tokens", options->max_tokens, "Longest continuation, in tokens")
      ->check(whole_number(1, kMostTokens))
      ->capture_default_str();
  app->add_option("--temperature", options->temperature,
                  "Spread of the draw: 0 takes the likeliest token (default the model's own, "
                  "otherwise 1)")
      ->check(number_range(0.0, 100.0));
  app->add_option("--top-p", options->top_p,
                  "Draw from the likeliest tokens that together have this probability")
      ->check(number_range(0.0, 1.0));
  app->add_option("--top-k", options->top_k, "Draw from this many likeliest tokens; 0 is all")
      ->check(whole_number(0, kMostTokens));
  app->add_option("--min-p", options->min_p,
                  "Draw from tokens at least this share as likely as the likeliest")
      ->check(number_range(0.0, 1.0));
  app->add_option("--seed", options->seed,
                  "Seed of the draw: the same seed gives the same text (default random)");
  app->add_flag("--ignore-eos", options->ignore_eos, "Go on past the end-of-sequence token");
  add_model_options(*app, options->model);
  app->footer("Example: protean generate MODEL --prompt \"Once upon a time\" --max-tokens 100");
  app->callback([options, &exit_code] { exit_code = run_generate(*options); });
}

}  // namespace protean
