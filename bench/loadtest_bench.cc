// Measures the error of the load generator's times and its CPU time. A scripted server writes
// 10,000 tokens/s to a hundred streams and records when it wrote them.

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "loadtest/load_generator.h"
#include "loadtest/scripted_server_for_test.h"
#include "loadtest/summary.h"

using namespace protean;            // NOLINT(google-build-using-namespace)
using namespace protean::loadtest;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kStreams = 100;
constexpr int kTokens = 1000;
constexpr double kLimitMs = 1;

double thread_cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

bool show(const char* name, std::vector<double> errors_ms) {
  const Distribution found = summarise(std::move(errors_ms), {50, 90, 99});
  std::printf("%-22s median %.3f  P90 %.3f  P99 %.3f  max %.3f ms\n", name, found.percentiles[0],
              found.percentiles[1], found.percentiles[2], found.max);
  return found.percentiles[0] < kLimitMs;
}

}  // namespace

int main() {
  ScriptedServer server([](const std::string&) {
    return fixed_delay_answer(100 * kNsPerMs, 10 * kNsPerMs, kTokens);
  });
  GeneratorOptions options;
  options.request.server = *parse_server_url(server.url());
  check(set_endpoint(options.request, "completions").ok(), "the endpoint is valid");
  int sent = 0;
  LoadGenerator generator(options, [&]() -> std::optional<ReadyRequest> {
    if (sent == kStreams) {
      return std::nullopt;
    }
    // Streams start at different times within one gap between tokens, as those of many users do.
    const TimeNs at_ns = sent * 10 * kNsPerMs / kStreams;
    return ReadyRequest{{.index = sent++, .at_ns = at_ns}, R"({"prompt":"a"})"};
  });
  const double before_s = thread_cpu_s();
  const auto run = generator.run(nullptr);
  const double cpu_s = thread_cpu_s() - before_s;
  check(run.ok(), "the run succeeds");
  const auto times = server.times();
  std::vector<double> ttft_ms_off;
  std::vector<double> tpot_ms_off;
  double chunks = 0;
  for (const RequestRecord& record : run->records) {
    check(record.outcome == Outcome::kCompleted, record.error);
    const auto& truth = times.at("bench-" + std::to_string(record.index));
    const auto ms = [](TimeNs time_ns) { return static_cast<double>(time_ns) / kNsPerMs; };
    ttft_ms_off.push_back(std::abs(
        ttft_ms(record) - ms(truth.written_ns.front() - run->clock_start_ns - record.sent_ns)));
    tpot_ms_off.push_back(std::abs(
        tpot_ms(record) - ms(truth.written_ns.back() - truth.written_ns.front()) / (kTokens - 1)));
    chunks += static_cast<double>(record.chunks);
  }
  const double seconds = static_cast<double>(run->elapsed_ns) / kNsPerS;
  std::printf("%d streams, %.0f tokens/s, CPU of the generator %.1f %% of a core (%.1f us/token)\n",
              kStreams, chunks / seconds, cpu_s / seconds * 100, cpu_s / chunks * 1e6);
  const bool ttft = show("error of TTFT", std::move(ttft_ms_off));
  const bool tpot = show("error of TPOT", std::move(tpot_ms_off));
  return ttft && tpot && cpu_s < seconds ? 0 : 1;
}
