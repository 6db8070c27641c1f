#include "loadtest/workload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/test_data.h"
#include "loadtest/prompt.h"
#include "loadtest/statistics.h"
#include "loadtest/trace_file.h"

namespace protean::loadtest {
namespace {

std::vector<PlannedRequest> all_of(const WorkloadOptions& options, const Trace* trace = nullptr) {
  auto workload = Workload::create(options, trace);
  EXPECT_TRUE(workload.ok()) << (workload.ok() ? "" : workload.error().message);
  std::vector<PlannedRequest> planned;
  while (auto next = workload->next()) {
    planned.push_back(*next);
  }
  return planned;
}

// Returns the distribution of the gaps between arrivals, in seconds.
Distribution gaps_of(const std::vector<PlannedRequest>& planned) {
  std::vector<double> gaps;
  for (std::size_t i = 1; i < planned.size(); ++i) {
    gaps.push_back(static_cast<double>(planned[i].at_ns - planned[i - 1].at_ns) / kNsPerS);
  }
  return summarise(std::move(gaps), {});
}

TEST(Workload, GapsHaveTheRequestedRateAndBurstiness) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const auto planned =
        all_of({.request_rate = 50, .burstiness = burstiness, .num_prompts = 40000, .seed = 3});
    ASSERT_EQ(planned.size(), 40000U);
    EXPECT_EQ(planned.front().at_ns, 0);
    const Distribution gaps = gaps_of(planned);
    EXPECT_NEAR(gaps.mean, 0.02, 0.02 * 0.04);
    EXPECT_NEAR(gaps.standard_deviation / gaps.mean, 1 / std::sqrt(burstiness), 0.06);
  }
}

TEST(Workload, TheSameSeedGivesTheSameSchedule) {
  const WorkloadOptions options{
      .request_rate = 5, .num_prompts = 100, .range_ratio = 0.5, .seed = 9};
  const auto same = [](const PlannedRequest& a, const PlannedRequest& b) {
    return a.at_ns == b.at_ns && a.input_tokens == b.input_tokens &&
           a.output_tokens == b.output_tokens;
  };
  const auto first = all_of(options);
  const auto again = all_of(options);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), again.begin(), again.end(), same));
  WorkloadOptions other = options;
  other.seed = 10;
  const auto others = all_of(other);
  EXPECT_FALSE(std::equal(first.begin(), first.end(), others.begin(), others.end(), same));
  // Another rate does not change the lengths.
  other = options;
  other.request_rate = 50;
  const auto faster = all_of(other);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].input_tokens, faster[i].input_tokens);
  }
}

TEST(Workload, LengthsAreUniformInTheirRange) {
  const auto planned = all_of({.request_rate = std::numeric_limits<double>::infinity(),
                               .num_prompts = 20000,
                               .input_tokens = 100,
                               .output_tokens = 10,
                               .range_ratio = 0.5});
  std::vector<double> inputs;
  for (const PlannedRequest& request : planned) {
    EXPECT_EQ(request.at_ns, 0);
    EXPECT_TRUE(request.output_tokens >= 5 && request.output_tokens <= 15);
    inputs.push_back(static_cast<double>(request.input_tokens));
  }
  const Distribution found = summarise(std::move(inputs), {0, 25, 75, 100});
  EXPECT_NEAR(found.mean, 100, 1.5);
  EXPECT_EQ(found.percentiles[0], 50);
  EXPECT_EQ(found.percentiles[3], 150);
  EXPECT_NEAR(found.percentiles[1], 75, 2);
}

TEST(Workload, ReplaysATraceScaled) {
  const auto trace = parse_trace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1000,10\n"
      "2023-11-16 18:17:07,500,200\n2023-11-16 18:17:13,3,4\n",
      "t");
  auto planned = all_of({.time_scale = 0.5, .length_scale = 0.1, .max_output_tokens = 15}, &*trace);
  ASSERT_EQ(planned.size(), 3U);
  EXPECT_EQ(planned[1].at_ns, 2 * kNsPerS);
  EXPECT_EQ(planned[0].input_tokens, 100);
  EXPECT_EQ(planned[1].output_tokens, 15);
  EXPECT_EQ(planned[2].input_tokens, 1) << "a prompt has at least one token";
  EXPECT_EQ(all_of({.num_prompts = 2}, &*trace).size(), 2U);
  EXPECT_EQ(all_of({.duration_ns = 10 * kNsPerS}, &*trace).size(), 2U);
  planned = all_of({.trace_start_ns = 2 * kNsPerS}, &*trace);
  ASSERT_EQ(planned.size(), 2U);
  EXPECT_EQ(planned[0].at_ns, 2 * kNsPerS);
  // With a request rate only lengths come from the trace, which repeats.
  planned = all_of({.request_rate = 10, .num_prompts = 7}, &*trace);
  ASSERT_EQ(planned.size(), 7U);
  EXPECT_EQ(planned[6].input_tokens, 1000);
}

TEST(Workload, RefusesRunsWithoutArrivalsOrEnd) {
  const auto lengths = parse_trace("num_prefill_tokens,num_decode_tokens\n5,6\n", "t");
  const auto refused = [](const WorkloadOptions& options, const Trace* trace) {
    const auto workload = Workload::create(options, trace);
    return workload.ok() ? "" : workload.error().message;
  };
  EXPECT_NE(refused({}, &*lengths).find("--request-rate"), std::string::npos);
  EXPECT_NE(refused({.request_rate = 1}, nullptr).find("--duration"), std::string::npos);
  EXPECT_NE(refused({.request_rate = -1, .num_prompts = 1}, nullptr), "");
  EXPECT_NE(refused({.request_rate = 1, .burstiness = 0, .num_prompts = 1}, nullptr), "");
  EXPECT_NE(refused({.request_rate = 1, .num_prompts = 1, .range_ratio = 1}, nullptr), "");
  EXPECT_EQ(refused({.request_rate = 1, .num_prompts = 1}, &*lengths), "");
}

TEST(Workload, ClientsKeepTheirRatesAndLengths) {
  const auto folder = test_data("traces/servegen/language-m-small");
  PROTEAN_REQUIRE_DATA(folder);
  const auto trace = read_trace(folder);
  ASSERT_TRUE(trace.ok());
  const auto planned = all_of({.duration_ns = 600 * kNsPerS, .seed = 1}, &*trace);
  double expected = 0;
  for (const ClientProcess& client : trace->clients) {
    expected += client.rates.front().requests_per_s * 600;
  }
  EXPECT_NEAR(static_cast<double>(planned.size()), expected, 6);
  TimeNs before_ns = 0;
  for (const PlannedRequest& request : planned) {
    ASSERT_GE(request.at_ns, before_ns);
    before_ns = request.at_ns;
    ASSERT_GE(request.input_tokens, 1);
  }
  const auto again = all_of({.duration_ns = 600 * kNsPerS, .seed = 1}, &*trace);
  EXPECT_EQ(again.back().at_ns, planned.back().at_ns);
}

TEST(Workload, AggregatesKeepTheirRate) {
  const auto trace = parse_trace(
      R"({"week1_min": [{"t": 1, "tps": 300}, {"t": 2, "tps": 3000}], "daily": [{"req": 1, "tok": 100}]})",
      "t");
  const auto planned = all_of({.seed = 1}, &*trace);
  const auto before = std::count_if(planned.begin(), planned.end(), [](const auto& request) {
    return request.at_ns < 120 * kNsPerS;
  });
  EXPECT_EQ(before, 180);
  EXPECT_EQ(planned.size(), 180U + 1800U);
  EXPECT_GE(planned.front().at_ns, 60 * kNsPerS);
}

TEST(Prompt, EqualHashIdsAreEqualText) {
  const auto trace = parse_trace(
      "{\"timestamp\": 0, \"input_length\": 1300, \"output_length\": 5, \"hash_ids\": [1, 2, 3]}\n"
      "{\"timestamp\": 0, \"input_length\": 1400, \"output_length\": 5, \"hash_ids\": [1, 2, 4]}\n"
      "{\"timestamp\": 0, \"input_length\": 1300, \"output_length\": 5, \"hash_ids\": [9, 2, 3]}\n",
      "t");
  const auto planned = all_of({.length_scale = 0.1}, &*trace);
  ASSERT_EQ(planned.size(), 3U);
  PromptWriter ids({.token_ids = TokenIdRange{100, 5000}}, 1);
  PromptWriter words({}, 1);
  words.set_calibration({1.3, 4});
  std::vector<std::vector<std::int64_t>> tokens;
  std::vector<std::string> texts;
  for (const PlannedRequest& request : planned) {
    tokens.push_back(ids.token_ids(request));
    EXPECT_EQ(std::ssize(tokens.back()), request.input_tokens);
    texts.push_back(words.text(request));
    const auto count = std::count(texts.back().begin(), texts.back().end(), ' ') + 1;
    EXPECT_NEAR(static_cast<double>(count) * 1.3 + 4, static_cast<double>(request.input_tokens), 1);
  }
  const std::size_t shared = 102;  // two blocks of 51.2 tokens
  EXPECT_TRUE(std::equal(tokens[0].begin(), tokens[0].begin() + shared, tokens[1].begin()));
  EXPECT_NE(tokens[0][shared + 1], tokens[1][shared + 1]);
  EXPECT_NE(tokens[0][0], tokens[2][0]);
  EXPECT_TRUE(std::equal(tokens[0].begin() + 52, tokens[0].end(), tokens[2].begin() + 52))
      << "the words of a block do not depend on its place";
  const auto common = static_cast<std::size_t>(
      std::mismatch(texts[0].begin(), texts[0].end(), texts[1].begin()).first - texts[0].begin());
  EXPECT_EQ(
      std::count(texts[0].begin(), texts[0].begin() + static_cast<std::ptrdiff_t>(common), ' '), 79)
      << "two blocks are 78.8 words";
}

TEST(Prompt, UnsharedPromptsDiffer) {
  PromptWriter words({}, 1);
  std::set<std::string> seen;
  for (std::int64_t i = 0; i < 200; ++i) {
    seen.insert(words.text({.index = i, .input_tokens = 8}));
  }
  EXPECT_EQ(seen.size(), 200U);
  EXPECT_EQ(words.text({.index = 5, .input_tokens = 8}),
            words.text({.index = 5, .input_tokens = 8}));
  PromptWriter text({.text = "a b c d e f"}, 1);
  EXPECT_NE(std::string("a b c d e f a b c d e f a b").find(text.text({.input_tokens = 8})),
            std::string::npos);
}

TEST(Prompt, Calibrates) {
  const ProbePrompt once{{.count = 8}, 21};
  const ProbePrompt twice{{.count = 8, .times = 2}, 31};
  TokenCalibration found = calibrate({{once, twice}});
  EXPECT_DOUBLE_EQ(found.overhead_tokens, 11);
  EXPECT_DOUBLE_EQ(found.tokens_per_word, 1.25);
  found = calibrate({{once, twice, ProbePrompt{{.first = 8, .count = 76}, 201}}});
  EXPECT_DOUBLE_EQ(found.overhead_tokens, 11);
  EXPECT_DOUBLE_EQ(found.tokens_per_word, 2.2);
  EXPECT_DOUBLE_EQ(calibrate({{ProbePrompt{{.count = 4}, 10}}}).tokens_per_word, 2.5);
  EXPECT_DOUBLE_EQ(
      calibrate({{ProbePrompt{{.count = 8}, 20}, ProbePrompt{{.count = 8, .times = 2}, 20}}})
          .tokens_per_word,
      1)
      << "usage of a server that does not count";
}

// Tries tokenizers with 1 and 5 tokens a word, and a chat template longer than the prompt.
TEST(Prompt, ProbesAreNoLongerThanTheRunsPrompts) {
  for (const auto& [per_word, overhead] : {std::pair{1, 1}, {5, 0}, {1, 40}}) {
    for (std::int64_t longest = 1; longest <= 1024; ++longest) {
      std::vector<ProbePrompt> sent;
      std::int64_t seen = 0;
      for (ProbeWords words = next_probe(sent, longest); words.count > 0;
           words = next_probe(sent, longest)) {
        ASSERT_LT(sent.size(), 6U);
        ASSERT_LE(words.first + words.count, 128) << longest;
        EXPECT_EQ(words.first, words.times == 2 ? 0 : seen);
        seen = words.first + words.count;
        sent.push_back({words, words.count * words.times * per_word + overhead});
        EXPECT_LE(sent.back().tokens, std::max<std::int64_t>(longest, 2 * per_word) + overhead);
      }
      const TokenCalibration found = calibrate(sent);
      EXPECT_DOUBLE_EQ(found.tokens_per_word, per_word);
      EXPECT_DOUBLE_EQ(found.overhead_tokens, overhead);
      EXPECT_TRUE(longest < 200 || seen == 128) << longest;
    }
  }
}

// Prompts are drawn from all words, so 128 of them have to be about as long as those are.
TEST(Prompt, ProbesAreTypical) {
  const PromptWriter words({}, 1);
  const auto mean_length = [&](std::int64_t count) {
    return static_cast<double>(words.probe_text({.count = count}).size() + 1) /
           static_cast<double>(count);
  };
  for (const std::int64_t count : {8, 16, 32, 64}) {
    EXPECT_NEAR(mean_length(count), mean_length(128), 0.25) << count;
  }
  EXPECT_EQ(words.probe_text({.first = 1, .count = 2, .times = 2}),
            words.probe_text({.first = 1, .count = 2}) + " " +
                words.probe_text({.first = 1, .count = 2}));
}

TEST(Workload, KnowsItsLongestPrompt) {
  const auto longest = [](const WorkloadOptions& options, const Trace* trace) {
    const std::int64_t found = Workload::create(options, trace)->longest_input();
    std::int64_t planned = 0;
    for (const PlannedRequest& request : all_of(options, trace)) {
      planned = std::max(planned, request.input_tokens);
    }
    EXPECT_LE(planned, found);
    return found;
  };
  EXPECT_EQ(longest({.request_rate = 1, .num_prompts = 50, .input_tokens = 100, .range_ratio = 0.5},
                    nullptr),
            150);
  const auto trace = parse_trace("num_prefill_tokens,num_decode_tokens\n5,6\n900,6\n", "t");
  EXPECT_EQ(longest({.request_rate = 1, .num_prompts = 9}, &*trace), 900);
  EXPECT_EQ(longest({.request_rate = 1, .num_prompts = 9, .length_scale = 0.5}, &*trace), 450);
  EXPECT_EQ(longest({.request_rate = 1, .num_prompts = 9, .max_input_tokens = 300}, &*trace), 300);
}

TEST(Prompt, ReadsDatasets) {
  const auto prompts =
      parse_dataset("{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"output_tokens\": 3}", "d");
  ASSERT_TRUE(prompts.ok());
  EXPECT_EQ((*prompts)[1].output_tokens, 3);
  EXPECT_TRUE(parse_dataset("{\"prompt\": \"a\"}\n{\"text\": 1}", "d")
                  .error()
                  .message.starts_with("d: line 2: "));
  EXPECT_FALSE(parse_dataset("\n", "d").ok());
  EXPECT_TRUE(parse_token_ids("3:9").ok());
  for (const char* wrong : {"", "3", ":", "9:3", "-1:3", "1.5:3", "1:x"}) {
    EXPECT_FALSE(parse_token_ids(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace protean::loadtest
