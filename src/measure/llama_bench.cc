#include "measure/llama_bench.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace protean {
namespace {

namespace json = boost::json;

constexpr int kDecodedTokens = 32;

struct FinishedRun {
  std::string output;
  int status = 0;
};

std::string read_all(int from) {
  std::string text;
  std::array<char, 65536> piece{};
  for (;;) {
    const ssize_t got = ::read(from, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return text;
    }
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
}

// Runs a program and reads its standard output. Its standard error is ours.
Result<FinishedRun> run_program(std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return make_error(ErrorCode::kInternal, "no pipe to {}: {}", arguments.front(),
                      std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, arguments.front().c_str(), &actions, nullptr,
                                    pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (failed != 0) {
    ::close(ends[0]);
    return make_error(ErrorCode::kInvalidArgument, "--llama-bench {}: cannot be run: {}",
                      arguments.front(), std::strerror(failed));
  }
  FinishedRun finished{.output = read_all(ends[0])};
  ::close(ends[0]);
  while (::waitpid(child, &finished.status, 0) < 0 && errno == EINTR) {
  }
  return finished;
}

// Returns a member of the test, or null.
const json::value* member(const json::object& test, std::string_view name) {
  return test.if_contains(name);
}

}  // namespace

Result<LlamaBenchRun> parse_llama_bench(std::string_view text) {
  boost::system::error_code failed;
  const json::value parsed = json::parse(text, failed);
  const json::array* tests = failed ? nullptr : parsed.if_array();
  const json::object* test =
      tests == nullptr || tests->size() != 1 ? nullptr : tests->front().if_object();
  const json::value* rate = test == nullptr ? nullptr : member(*test, "avg_ts");
  if (rate == nullptr || !rate->is_number() || !(rate->to_number<double>() > 0)) {
    return make_error(ErrorCode::kUnsupported,
                      "--llama-bench printed no list of one test with its avg_ts: is it "
                      "llama.cpp's, and does it know -o json?");
  }
  const json::value* model = member(*test, "model_type");
  return LlamaBenchRun{.model = model != nullptr && model->is_string()
                                    ? std::string(model->get_string())
                                    : std::string(),
                       .tokens_per_s = rate->to_number<double>()};
}

Result<std::optional<LlamaBench>> LlamaBench::create(const LlamaBenchOptions& options,
                                                     int threads) {
  if (options.program.empty()) {
    return std::optional<LlamaBench>();
  }
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(options.model, unknown)) {
    return make_error(ErrorCode::kNotFound, "--gguf {}: there is no such file", options.model);
  }
  return std::optional(LlamaBench(options, threads));
}

Result<LlamaBenchRun> LlamaBench::prefill(int tokens) const {
  return run({"-p", std::to_string(tokens), "-n", "0"});
}

Result<LlamaBenchRun> LlamaBench::decode(int context) const {
  std::vector<std::string> test = {"-p", "0", "-n", std::to_string(kDecodedTokens)};
  if (context > 0) {
    test.insert(test.end(), {"-d", std::to_string(context)});
  }
  return run(test);
}

Result<LlamaBenchRun> LlamaBench::run(const std::vector<std::string>& test) const {
  std::vector<std::string> arguments = {options_.program,
                                        "-m",
                                        options_.model,
                                        "-t",
                                        std::to_string(threads_),
                                        "-r",
                                        "1",
                                        "-o",
                                        "json"};
  arguments.insert(arguments.end(), test.begin(), test.end());
  const auto finished = run_program(arguments);
  if (!finished.ok()) {
    return finished.error();
  }
  if (!WIFEXITED(finished->status) || WEXITSTATUS(finished->status) != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--llama-bench {}: it failed on {}; what it said is above", options_.program,
                      options_.model);
  }
  return parse_llama_bench(finished->output);
}

}  // namespace protean
