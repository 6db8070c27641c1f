#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "apps/options.h"
#include "base/nearest.h"
#include "host/machine.h"
#include "replica/local_client.h"
#include "terminal/line_editor.h"
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
    "/help           list these commands\n"
    "/reset          forget the conversation\n"
    "/system TEXT    set the system message and forget the conversation; without TEXT: show it\n"
    "/save FILE      write the conversation to a new file, as JSON\n"
    "/exit           end the program, as Ctrl-D does\n"
    "Ctrl-C stops an answer. A line that ends with \\ goes on in the next one; lines between two\n"
    "lines of \"\"\" are one message. A message may begin with / if a space comes before it.\n";

// The conversation so far. Makes requests of it.
class Conversation {
 public:
  Conversation(const LocalClient& client, const ChatOptions& options)
      : client_(client), options_(options), system_(options.system) {
    reset();
  }

  const std::string& system() const { return system_; }
  void set_system(std::string text) {
    system_ = std::move(text);
    reset();
  }

  void reset() {
    messages_.clear();
    if (!system_.empty()) {
      add("system", system_);
    }
  }

  // Fails if there is such a file already.
  Status save(const std::string& path) const {
    std::error_code unknown;
    if (std::filesystem::exists(path, unknown)) {
      return make_error(ErrorCode::kInvalidArgument, "/save {}: the file exists: name another",
                        path);
    }
    std::ofstream file(path, std::ios::binary);
    file << boost::json::serialize(boost::json::object{{"messages", messages_}}) << "\n";
    file.close();
    return file ? Status()
                : make_error(ErrorCode::kInvalidArgument, "/save {}: the file cannot be written",
                             path);
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
  std::string system_;
  boost::json::array messages_;
};

// Answers the last message, streaming. If that fails, removes the message and prints why.
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

struct Message {
  std::string text;
  bool is_command = false;
};

// Reads the lines of a message up to a line of """. Returns nothing if the input ends before it.
std::optional<Message> read_block(LineEditor& editor, std::string_view fence) {
  std::string text;
  for (bool first = true;; first = false) {
    const auto line = editor.read("... ");
    if (!line) {
      return std::nullopt;
    }
    if (*line == fence) {
      return Message{std::move(text)};
    }
    text += (first ? "" : "\n") + *line;
  }
}

// Reads one message: a line, lines that end with a backslash and the next one, or lines between two
// lines of """. Returns nothing at the end of input.
std::optional<Message> read_message(LineEditor& editor) {
  constexpr std::string_view kFence = "\"\"\"";
  auto line = editor.read("> ");
  if (!line) {
    return std::nullopt;
  }
  if (*line == kFence) {
    return read_block(editor, kFence);
  }
  Message message{*std::move(line), false};
  message.is_command = message.text.starts_with('/');
  while (message.text.ends_with('\\')) {
    const auto next = editor.read("... ");
    if (!next) {
      break;
    }
    message.text.back() = '\n';
    message.text += *next;
  }
  return message;
}

// Runs a command such as "/system TEXT". Returns false if the program is to end.
bool run_command(const std::string& line, Conversation& conversation) {
  const std::size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  const std::string argument = space == line.npos ? "" : line.substr(space + 1);
  if (name == "/exit" || name == "/quit") {
    return false;
  }
  if (name == "/reset") {
    conversation.reset();
  } else if (name == "/help") {
    print_text(kHelp);
  } else if (name == "/system" && argument.empty()) {
    print_text(
        (conversation.system().empty() ? "there is no system message" : conversation.system()) +
        "\n");
  } else if (name == "/system") {
    conversation.set_system(argument);
  } else if (name == "/save" && argument.empty()) {
    exit_with({ErrorCode::kInvalidArgument, "/save needs the name of a file"});
  } else if (name == "/save") {
    const Status saved = conversation.save(argument);
    saved.ok() ? print_text("saved in " + argument + "\n") : void(exit_with(saved.error()));
  } else {
    static const std::vector<std::string> kNames = {"/help", "/reset", "/system", "/save", "/exit"};
    const std::string near = nearest(name, kNames);
    exit_with({ErrorCode::kInvalidArgument,
               fmt::format("there is no command {}: {}", name,
                           near.empty() ? "/help lists them" : "did you mean " + near + "?")});
  }
  return true;
}

int run_chat(const ChatOptions& options) {
  InterruptibleClient client;
  if (Status opened = client.open(options.model); !opened.ok()) {
    return exit_with(opened.error());
  }
  Conversation conversation(*client, options);
  LineEditor editor;
  if (editor.is_terminal()) {
    print_text("/help lists the commands, Ctrl-D ends the program.\n");
  }
  while (const auto message = read_message(editor)) {
    if (message->is_command) {
      if (!run_command(message->text, conversation)) {
        break;
      }
    } else if (!message->text.empty()) {
      conversation.add("user", message->text);
      answer(*client, conversation);
    }
  }
  return 0;
}

}  // namespace

void add_chat(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand("chat", "Talk with a model in this terminal");
  auto options = std::make_shared<ChatOptions>();
  options->seed = std::random_device{}();
  app->option_defaults()->group("Conversation");
  app->add_option("--system", options->system, "System message that the conversation begins with")
      ->type_name("TEXT");
  app->add_option("--max-tokens", options->max_tokens, "Longest answer, in tokens")
      ->check(whole_number(1, kMostTokens))
      ->capture_default_str();
  app->add_option("--temperature", options->temperature,
                  "Spread of the draw: 0 takes the likeliest token (default the model's own, "
                  "otherwise 0.7)")
      ->check(number_range(0.0, 100.0));
  app->add_option("--seed", options->seed,
                  "Seed of the draw: the same seed gives the same conversation (default random)");
  add_model_options(*app, options->model);
  app->footer("Example: protean chat MODEL --system \"You answer in one sentence.\"");
  app->callback([options, &exit_code] { exit_code = run_chat(*options); });
}

}  // namespace protean
