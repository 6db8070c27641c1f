#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "apps/bench_engine.h"
#include "apps/bench_kernels.h"
#include "apps/bench_options.h"
#include "apps/bench_run.h"
#include "apps/options.h"
#include "host/descriptor_limit.h"
#include "host/signal_watcher.h"
#include "loadtest/compare.h"
#include "loadtest/report_html.h"
#include "loadtest/report_json.h"
#include "terminal/output.h"

namespace protean {
namespace loadtest {
namespace {

Status write_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    print_text(text);
    return {};
  }
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    return make_error(ErrorCode::kInvalidArgument, "{} cannot be written", path);
  }
  return {};
}

// Shows progress: on a terminal one line that redraws itself, otherwise a line every 10 s.
std::function<void(const Progress&)> progress_printer(std::int64_t total) {
  struct Last {
    TimeNs elapsed_ns = 0;
    std::int64_t chunks = 0;
    TimeNs printed_ns = 0;
  };
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  return [terminal, total, last = Last{}](const Progress& now) mutable {
    if (!terminal && now.elapsed_ns - last.printed_ns < 10 * kNsPerS) {
      return;
    }
    const double seconds = static_cast<double>(now.elapsed_ns - last.elapsed_ns) / kNsPerS;
    const double rate = static_cast<double>(now.chunks - last.chunks) / std::max(seconds, 1e-3);
    fmt::print(stderr, "{}{:7.1f} s  sent {}{}  running {}  done {}  failed {}  {:.0f} chunks/s{}",
               terminal ? "\r\x1b[K" : "", static_cast<double>(now.elapsed_ns) / kNsPerS, now.sent,
               total > 0 ? fmt::format(" of {}", total) : "", now.in_flight, now.completed,
               now.failed, rate, terminal ? "" : "\n");
    std::fflush(stderr);
    last = {now.elapsed_ns, now.chunks, now.elapsed_ns};
  };
}

Status write_results(const BenchOptions& options, const BenchRun& bench, const RunResult& run) {
  const OutputOptions& output = options.output;
  const Summary summary = summarise_run(run, output.slo, output.percentiles);
  if (output.json != "-") {
    print_text(table_of(bench.description, summary));
  }
  if (!output.json.empty()) {
    const JsonDetail detail{.requests = !output.no_records, .itl = output.save_itl};
    if (Status written = write_text(output.json, json_of(bench.description, summary, run, detail));
        !written.ok()) {
      return written;
    }
  }
  if (!output.html.empty()) {
    return write_text(output.html, html_of(bench.description, summary, run));
  }
  return {};
}

// Writes requests and their answers, finished or not, to a file, in the order in which they ended.
Status save_answers(const std::string& path, GeneratorOptions& generator) {
  auto file = std::make_shared<std::ofstream>(path, std::ios::binary);
  if (!*file) {
    return make_error(ErrorCode::kInvalidArgument, "{} cannot be written", path);
  }
  generator.on_answer = [file](const ReadyRequest& ready, const RequestRecord& record,
                               std::string_view chunks) {
    *file << R"({"index":)" << record.index << R"(,"outcome":")" << to_string(record.outcome)
          << R"(","request":)" << ready.body << R"(,"chunks":[)" << chunks << "]}\n";
  };
  return {};
}

int run_serve(BenchOptions& options) {
  auto bench = make_run(options);
  if (!bench.ok()) {
    return exit_with(bench.error());
  }
  // Each stream needs a socket.
  const int places = clip_connections(std::max(1, options.load.max_concurrency));
  if (options.load.max_concurrency > 0) {
    bench->generator.max_concurrency = places;
  }
  if (Status met = meet_server(options, *bench); !met.ok()) {
    return exit_with(met.error());
  }
  if (!options.output.answers.empty()) {
    if (Status saved = save_answers(options.output.answers, bench->generator); !saved.ok()) {
      return exit_with(saved.error());
    }
  }
  LoadGenerator generator(bench->generator, [&] { return next_ready(*bench); });
  std::atomic<bool> interrupted = false;
  std::optional<SignalWatcher> watcher;
  watcher.emplace({SIGINT, SIGTERM}, [&](int) {
    if (interrupted.exchange(true)) {
      std::_Exit(kExitInterrupted);
    }
    generator.stop();
  });
  const bool quiet = options.output.quiet;
  auto run = generator.run(quiet ? nullptr : progress_printer(bench->workload->total()));
  watcher.reset();
  if (!quiet && ::isatty(STDERR_FILENO) != 0) {
    fmt::print(stderr, "\r\x1b[K");
  }
  if (!run.ok()) {
    return exit_with(run.error());
  }
  if (run->interrupted) {
    bench->description.notes.emplace_back("interrupted: this is the part that was done");
  }
  if (!run->metrics_note.empty()) {
    bench->description.notes.push_back("no server metrics: " + run->metrics_note);
  }
  if (Status written = write_results(options, *bench, *run); !written.ok()) {
    return exit_with(written.error());
  }
  const bool any = std::any_of(run->records.begin(), run->records.end(), [](const auto& record) {
    return record.outcome == Outcome::kCompleted;
  });
  return run->interrupted ? kExitInterrupted : any ? 0 : 1;
}

Result<RecordedRun> read_run(const std::string& path) {
  const auto text = read_text(path);
  return text.ok() ? parse_recorded_run(*text, path) : text.error();
}

struct CompareOptions {
  std::string a;
  std::string b;
  BootstrapOptions bootstrap;
};

int run_compare(const CompareOptions& options) {
  const auto a = read_run(options.a);
  const auto b = read_run(options.b);
  if (!a.ok() || !b.ok()) {
    return exit_with(a.ok() ? b.error() : a.error());
  }
  print_text(comparison_table(*a, *b, compare_runs(*a, *b, options.bootstrap)));
  return 0;
}

void add_compare_options(CLI::App& app, CompareOptions& options) {
  app.add_option("RUN-A", options.a, "Result of protean bench serve --json")
      ->type_name("RUN-A")
      ->check(existing_path())
      ->required();
  app.add_option("RUN-B", options.b, "Another, which is compared with the first")
      ->type_name("RUN-B")
      ->check(existing_path())
      ->required();
  app.option_defaults()->group("Statistics");
  app.add_option("--rounds", options.bootstrap.rounds, "Rounds of the bootstrap")
      ->check(whole_number(100, 1000000))
      ->capture_default_str();
  app.add_option("--seed", options.bootstrap.seed, "Seed of the bootstrap")->capture_default_str();
}

}  // namespace
}  // namespace loadtest

void add_bench(CLI::App& root, int& exit_code) {
  CLI::App* bench =
      root.add_subcommand("bench", "Measure a server under load, a model's steps, or kernels");
  bench->require_subcommand(1);
  bench->footer("protean bench COMMAND --help lists the flags of a command.");
  CLI::App* serve = bench->add_subcommand(
      "serve", "Send requests to any OpenAI-compatible server and time its answers");
  auto options = std::make_shared<loadtest::BenchOptions>();
  loadtest::add_bench_options(*serve, *options);
  serve->footer(
      "Example: protean bench serve --base-url http://127.0.0.1:8000 --request-rate 4 "
      "--num-prompts 200 \\\n"
      "  --random-input-len 256 --random-output-len 64 --goodput ttft:500 tpot:50 --json run.json");
  serve->callback([options, &exit_code] { exit_code = loadtest::run_serve(*options); });
  CLI::App* compare =
      bench->add_subcommand("compare", "Compare two results, and tell differences from noise")
          ->alias("--compare");
  auto compared = std::make_shared<loadtest::CompareOptions>();
  loadtest::add_compare_options(*compare, *compared);
  compare->footer("Example: protean bench compare before.json after.json");
  compare->callback([compared, &exit_code] { exit_code = loadtest::run_compare(*compared); });
  add_bench_kernels(*bench, exit_code);
  add_bench_engine(*bench, exit_code);
}

}  // namespace protean
