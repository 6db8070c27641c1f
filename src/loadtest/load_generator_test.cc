#include "loadtest/load_generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <semaphore>
#include <thread>

#include "loadtest/scripted_server_for_test.h"
#include "loadtest/summary.h"

namespace protean::loadtest {
namespace {

GeneratorOptions options_for(const std::string& url) {
  GeneratorOptions options;
  options.request.server = *parse_server_url(url);
  EXPECT_TRUE(set_endpoint(options.request, "completions").ok());
  options.request.model = "m";
  options.timeout_ns = 60 * kNsPerS;
  return options;
}

// Returns `count` requests, due `gap_ns` apart.
RequestSource requests(std::int64_t count, TimeNs gap_ns = 0) {
  return [count, gap_ns, sent = std::int64_t{0}]() mutable -> std::optional<ReadyRequest> {
    if (sent == count) {
      return std::nullopt;
    }
    PlannedRequest planned{.index = sent, .at_ns = sent * gap_ns, .input_tokens = 7};
    ++sent;
    return ReadyRequest{planned, R"({"prompt":"a"})"};
  };
}

RunResult run(const GeneratorOptions& options, RequestSource source) {
  LoadGenerator generator(options, std::move(source));
  auto result = generator.run(nullptr);
  EXPECT_TRUE(result.ok());
  return *std::move(result);
}

// Sends one request to a server that gives `answer`.
RequestRecord ask(const ScriptedAnswer& answer, TimeNs timeout_ns = 60 * kNsPerS) {
  ScriptedServer server([&](const std::string&) { return answer; });
  GeneratorOptions options = options_for(server.url());
  options.timeout_ns = timeout_ns;
  RunResult result = run(options, requests(1));
  EXPECT_EQ(result.records.size(), 1U);
  return std::move(result.records.front());
}

double least_tenth(std::vector<double> samples) {
  return summarise(std::move(samples), {10}).percentiles[0];
}

// Compares measured times with the times at which the server wrote, on the same clock. A busy
// machine delays most streams, but a wrong measure is wrong for all: the least tenth is compared,
// and bench/loadtest_bench has the tight limits.
TEST(LoadGenerator, TimesOfAHundredStreamsEqualTheServers) {
  static constexpr int kStreams = 100;
  static constexpr int kTokens = 20;
  ScriptedServer server(
      [](const std::string&) { return fixed_delay_answer(60 * kNsPerMs, 20 * kNsPerMs, kTokens); });
  GeneratorOptions options = options_for(server.url());
  options.max_concurrency = kStreams;
  const RunResult result = run(options, requests(2 * kStreams));
  ASSERT_EQ(result.records.size(), 2U * kStreams);
  const auto times = server.times();
  std::vector<double> first_late_ms;
  std::vector<double> tpot_error_ms;
  for (const RequestRecord& record : result.records) {
    ASSERT_EQ(record.outcome, Outcome::kCompleted) << record.error;
    EXPECT_EQ(record.output_tokens, kTokens);
    EXPECT_EQ(record.chunks, kTokens);
    EXPECT_EQ(record.input_tokens, 7);
    EXPECT_EQ(record.finish_reason, "length");
    EXPECT_GE(ttft_ms(record), 60);
    EXPECT_GE(e2e_ms(record), 60 + 19 * 20);
    const auto& truth = times.at("bench-" + std::to_string(record.index));
    const auto late_ns = result.clock_start_ns + record.first_token_ns - truth.written_ns.front();
    ASSERT_GE(late_ns, 0) << "a token cannot arrive before it was written";
    first_late_ms.push_back(static_cast<double>(late_ns) / kNsPerMs);
    const double tpot_truth_ms =
        static_cast<double>(truth.written_ns.back() - truth.written_ns.front()) / kNsPerMs /
        (kTokens - 1);
    tpot_error_ms.push_back(std::abs(tpot_ms(record) - tpot_truth_ms));
  }
  EXPECT_LT(least_tenth(first_late_ms), 60) << "less than the delay itself";
  EXPECT_LT(least_tenth(tpot_error_ms), 10) << "half of the time between tokens";
  EXPECT_EQ(server.connections(), kStreams) << "connections are reused";
}

TEST(LoadGenerator, SendsWhenDue) {
  ScriptedServer server(
      [](const std::string&) { return fixed_delay_answer(100 * kNsPerMs, 0, 1); });
  // For longer than the system stops a thread.
  const RunResult result = run(options_for(server.url()), requests(100, 10 * kNsPerMs));
  ASSERT_EQ(result.records.size(), 100U);
  std::vector<double> lags;
  int overlapping = 0;
  for (const RequestRecord& record : result.records) {
    EXPECT_EQ(record.due_ns, record.index * 10 * kNsPerMs);
    EXPECT_GE(record.sent_ns, record.due_ns) << "not all at once";
    lags.push_back(lag_ms(record));
    const auto overlaps = [&record](const RequestRecord& other) {
      return other.sent_ns < record.sent_ns && other.end_ns > record.sent_ns;
    };
    overlapping += std::any_of(result.records.begin(), result.records.end(), overlaps) ? 1 : 0;
  }
  EXPECT_GT(overlapping, 0) << "not one after the other";
  EXPECT_LT(least_tenth(lags), 50) << "a busy machine delays most of them, but not all";
}

TEST(LoadGenerator, RespectsMaxConcurrency) {
  ScriptedServer server(
      [](const std::string&) { return fixed_delay_answer(5 * kNsPerMs, kNsPerMs, 3); });
  GeneratorOptions options = options_for(server.url());
  options.max_concurrency = 3;
  const RunResult result = run(options, requests(30));
  ASSERT_EQ(result.records.size(), 30U);
  for (const RequestRecord& record : result.records) {
    const auto running = std::count_if(
        result.records.begin(), result.records.end(), [&](const RequestRecord& other) {
          return other.sent_ns <= record.sent_ns && other.end_ns > record.sent_ns;
        });
    EXPECT_LE(running, 3);
    EXPECT_EQ(record.outcome, Outcome::kCompleted);
  }
  EXPECT_EQ(server.connections(), 3);
}

TEST(LoadGenerator, DistinguishesErrors) {
  const auto whole = [](const std::string& bytes) { return ScriptedAnswer{{{0, bytes}}, true}; };
  const auto events = [&](const std::string& text) {
    return whole(stream_head() + http_chunk(text) + "0\r\n\r\n");
  };
  EXPECT_EQ(ask(fixed_delay_answer(0, 0, 2)).outcome, Outcome::kCompleted);

  const RequestRecord refused =
      ask(whole("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 36\r\n\r\n"
                R"({"error":{"message":"queue is full"}})"
                "\n"));
  EXPECT_EQ(refused.outcome, Outcome::kBrokenStream) << "one byte more than Content-Length";
  const RequestRecord busy =
      ask(whole("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 37\r\n\r\n"
                R"({"error":{"message":"queue is full"}})"));
  EXPECT_EQ(busy.outcome, Outcome::kHttpStatus);
  EXPECT_EQ(busy.http_status, 429);
  EXPECT_EQ(busy.error, "queue is full");

  EXPECT_EQ(
      ask(whole("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"))
          .outcome,
      Outcome::kNotAStream);
  EXPECT_EQ(ask(whole("")).outcome, Outcome::kConnectError);
  EXPECT_EQ(ask(whole("SSH-2.0-OpenSSH\r\n")).outcome, Outcome::kBrokenStream);
  EXPECT_EQ(ask(whole(stream_head() + http_chunk(token_event()))).outcome, Outcome::kBrokenStream);
  EXPECT_EQ(ask(events(token_event())).outcome, Outcome::kBrokenStream) << "no [DONE]";
  EXPECT_EQ(ask(events("data: {broken\n\n")).outcome, Outcome::kBadJson);
  const RequestRecord error =
      ask(events(token_event() + "data: {\"error\":{\"message\":\"out of memory\"}}\n\n"));
  EXPECT_EQ(error.outcome, Outcome::kErrorEvent);
  EXPECT_EQ(error.error, "out of memory");
  EXPECT_EQ(ask(events("data: [DONE]\n\n")).outcome, Outcome::kEmptyAnswer);
  EXPECT_EQ(ask({{{0, stream_head() + http_chunk(token_event())}}, false}, kNsPerS / 2).outcome,
            Outcome::kTimeout);

  int closed_port = 0;
  {
    closed_port = ScriptedServer([](const std::string&) { return ScriptedAnswer{}; }).port();
  }
  const RunResult unconnected =
      run(options_for(fmt::format("http://127.0.0.1:{}", closed_port)), requests(2));
  ASSERT_EQ(unconnected.records.size(), 2U);
  EXPECT_EQ(unconnected.records[1].outcome, Outcome::kConnectError);
}

TEST(LoadGenerator, ResendsIfAnIdleConnectionWasClosed) {
  ScriptedServer server([](const std::string&) {
    ScriptedAnswer answer = fixed_delay_answer(0, 0, 2);
    answer.close = true;  // without a Connection: close field
    return answer;
  });
  GeneratorOptions options = options_for(server.url());
  options.max_concurrency = 1;
  const RunResult result = run(options, requests(10));
  for (const RequestRecord& record : result.records) {
    EXPECT_EQ(record.outcome, Outcome::kCompleted) << record.error;
  }
}

TEST(LoadGenerator, StopInterruptsRunningRequests) {
  std::counting_semaphore<1000> asked{0};
  ScriptedServer server([&](const std::string&) {
    asked.release();
    return fixed_delay_answer(0, 100 * kNsPerMs, 1000);
  });
  LoadGenerator generator(options_for(server.url()), requests(1000, 10 * kNsPerMs));
  std::thread interrupt([&] {
    asked.acquire();
    asked.acquire();
    generator.stop();
  });
  const auto result = generator.run(nullptr);
  interrupt.join();
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->interrupted);
  EXPECT_LT(result->elapsed_ns, 60 * kNsPerS) << "an answer takes 100 s";
  ASSERT_FALSE(result->records.empty());
  for (const RequestRecord& record : result->records) {
    EXPECT_EQ(record.outcome, Outcome::kInterrupted);
  }
}

TEST(LoadGenerator, ReadsServerMetrics) {
  ScriptedServer server([](const std::string& request) {
    if (request.starts_with("GET /metrics ")) {
      const std::string text = "vllm:num_requests_waiting{model_name=\"m\"} 3\n";
      return ScriptedAnswer{
          {{0, fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", text.size(), text)}},
          false};
    }
    return fixed_delay_answer(500 * kNsPerMs, 0, 2);
  });
  GeneratorOptions options = options_for(server.url());
  options.metrics_interval_ns = 5 * kNsPerMs;
  const RunResult result = run(options, requests(1));
  ASSERT_GE(result.server.size(), 2U);
  EXPECT_EQ(result.server.back().metrics.waiting, 3);
  EXPECT_FALSE(result.server.back().metrics.kv_use.has_value());
}

}  // namespace
}  // namespace protean::loadtest
