#include <unistd.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <iostream>
#include <memory>
#include <random>
#include <string>

#include "apps/options.h"
#include "host/machine.h"
#include "replica/local_client.h"
#include "terminal/output.h"

namespace protean {
namespace {

struct ChatOptions {
  ModelOptions model;
  std::string system;
  int max_tokens = 512;
  float temperature = -1;  // negative = the model's own
  std::uint64_t seed = 0;
};

constexpr std::string_view kHelp =
    "/reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer.\n";

// The conversation so far, and how it becomes a request.
class Conversation {
 public:
  Conversation(const LocalClient& client, const ChatOptions& options)
      : client_(client), options_(options) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!options_.system.empty()) {
      add("system", options_.system);
    }
  }

  void add(std::string_view role, std::string_view content) {
    messages_.push_back(boost::json::object{{"role", role}, {"content", content}});
  }

  void drop_last() { messages_.pop_back(); }

  Result<Request> next_request() const {
    const ModelFiles& files = client_.files();
    const ChatContext context{
        .bos_token = files.chat.bos_token, .eos_token = files.chat.eos_token, .now = local_time()};
    const auto text = files.chat_template.render(messages_, context);
    if (!text.ok()) {
      return text.error();
    }
    const GenerationDefaults& defaults = files.generation;
    Request request;
    EncodeOptions encoding{.add_special = false};
    if (options_.model.special_tokens_in_content == "escape") {
      encoding.special_in = text->from_template;
    }
    request.prompt = files.tokenizer->encode(text->text, encoding);
    const int room = client_.max_model_len() - static_cast<int>(request.prompt.size());
    if (room < 1 || request.prompt.empty()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the conversation has {} tokens and the context holds {}: /reset it",
                        request.prompt.size(), client_.max_model_len());
    }
    request.max_tokens = std::min(options_.max_tokens, room);
    request.stop_ids = defaults.stop_ids;
    request.sampling = {.temperature = options_.temperature >= 0
                                           ? options_.temperature
                                           : defaults.temperature.value_or(0.7F),
                        .top_k = defaults.top_k.value_or(0),
                        .top_p = defaults.top_p.value_or(0.95F),
                        .min_p = defaults.min_p.value_or(0.0F),
                        .seed = options_.seed + messages_.size()};
    return request;
  }

 private:
  const LocalClient& client_;
  const ChatOptions& options_;
  boost::json::array messages_;
};

// Answers the last message, streaming, or takes it back when it cannot be answered.
void answer(LocalClient& client, Conversation& conversation) {
  auto request = conversation.next_request();
  if (!request.ok()) {
    conversation.drop_last();
    exit_with(request.error());
    return;
  }
  std::string said;
  const auto finished = client.run(*std::move(request), true, [&](std::string_view text) {
    said += text;
    print_text(text);
  });
  print_text("\n");
  if (!finished.ok() || finished->reason == FinishReason::kFailed) {
    conversation.drop_last();
    exit_with(finished.ok() ? Error{ErrorCode::kInternal, finished->failure} : finished.error());
    return;
  }
  conversation.add("assistant", said);
}

int run_chat(const ChatOptions& options) {
  InterruptibleClient client;
  if (Status opened = client.open(options.model); !opened.ok()) {
    return exit_with(opened.error());
  }
  Conversation conversation(*client, options);
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  if (terminal) {
    print_text(kHelp);
  }
  std::string line;
  while (print_text(terminal ? "> " : ""), std::getline(std::cin, line)) {
    if (line == "/exit") {
      break;
    }
    if (line == "/reset") {
      conversation.reset();
    } else if (line == "/help") {
      print_text(kHelp);
    } else if (!line.empty()) {
      conversation.add("user", line);
      answer(*client, conversation);
    }
  }
  return 0;
}

}  // namespace

void add_chat(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand("chat", "talk with a model in this terminal");
  auto options = std::make_shared<ChatOptions>();
  options->seed = std::random_device{}();
  add_model_options(*app, options->model);
  app->add_option("--system", options->system, "system message the conversation begins with");
  app->add_option("--max-tokens", options->max_tokens, "longest answer")
      ->check(CLI::Range(1, kMostTokens))
      ->capture_default_str();
  app->add_option("--temperature", options->temperature, "0 = greedy; default: the model's, or 0.7")
      ->check(number_range(0.0, 100.0));
  app->add_option("--seed", options->seed, "same seed, same conversation; default: random");
  app->footer("Example: protean chat MODEL --system \"You answer in one sentence.\"");
  app->callback([options, &exit_code] { exit_code = run_chat(*options); });
}

}  // namespace protean
