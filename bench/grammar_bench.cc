// Measures structured output without a model: compiling and preparing a schema, and masks that are
// cold, prepared or cached. Times are the thread's CPU time. Needs the tokenizers of PROTEAN_DATA.

#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <bit>
#include <boost/json/parse.hpp>
#include <map>
#include <random>
#include <string>

#include "base/test_data.h"
#include "grammar/grammar.h"
#include "tokenizer/tokenizer.h"

namespace protean {
namespace {

double cpu_us() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

const std::map<std::string, std::string>& schemas() {
  static const std::map<std::string, std::string> kSchemas{
      {"any_object", R"({"type":"object"})"},
      {"person",
       R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer",
           "minimum":0,"maximum":150},"tags":{"type":"array","items":{"enum":["a","b","c"]}},
           "address":{"type":"object","properties":{"street":{"type":"string"},
           "zip":{"type":"string","pattern":"^\\d{5}$"}},"required":["street"]}},
           "required":["name","age","address"]})"},
      {"bounded_text",
       R"({"type":"object","properties":{"text":{"type":"string","minLength":1,"maxLength":400},
           "words":{"type":"array","items":{"type":"string","maxLength":12},"maxItems":20}},
           "required":["text","words"]})"},
      {"recursive",
       R"({"$defs":{"n":{"type":"object","properties":{"label":{"type":"string"},
           "kids":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["label","kids"],
           "additionalProperties":{"type":"number"}}},"$ref":"#/$defs/n"})"},
      {"pattern", R"({"type":"string","pattern":"^[^\"]{10,80}(, [A-Z][a-z]+)*$"})"},
  };
  return kSchemas;
}

struct Vocabulary128k {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<GrammarTokens> tokens;
};

const Vocabulary128k& llama3() {
  static const Vocabulary128k kVocabulary = [] {
    Vocabulary128k made;
    auto loaded = load_tokenizer(test_data("tokenizers/llama3"));
    if (loaded) {
      made.tokenizer = std::move(*loaded);
      made.tokens =
          std::make_unique<GrammarTokens>(*made.tokenizer, made.tokenizer->vocab_size(),
                                          std::vector<TokenId>{made.tokenizer->vocab_size() - 1});
    }
    return made;
  }();
  return kVocabulary;
}

// Appends the times of allowed_after() for one random answer of at most 150 tokens.
void write_answers(TokenConstraint& constraint, std::mt19937& random,
                   std::vector<double>& times_us) {
  const int vocab = llama3().tokenizer->vocab_size();
  std::vector<std::uint64_t> mask(token_mask_words(vocab));
  std::vector<TokenId> answer;
  for (int n = 0; n < 150; ++n) {
    const double begin_us = cpu_us();
    constraint.allowed_after(answer, mask);
    times_us.push_back(cpu_us() - begin_us);
    std::vector<TokenId> allowed;
    for (std::size_t word = 0; word < mask.size(); ++word) {
      for (std::uint64_t bits = mask[word]; bits != 0; bits &= bits - 1) {
        allowed.push_back(static_cast<TokenId>(word * 64) + std::countr_zero(bits));
      }
    }
    const TokenId token = allowed[random() % allowed.size()];
    if (llama3().tokenizer->bytes(token).empty()) {
      return;
    }
    answer.push_back(token);
  }
}

double quantile(std::vector<double>& values, double q) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[static_cast<std::size_t>(q * (values.size() - 1))];
}

void mask_time(benchmark::State& state, const std::string& schema) {
  if (llama3().tokens == nullptr) {
    state.SkipWithError("needs tokenizers/llama3 in the test data folder");
    return;
  }
  const GrammarSource source{JsonSchema{.schema = boost::json::parse(schema)}};
  std::vector<double> prepared_us;
  std::vector<double> warm_us;
  double prepare_us = 0;
  constexpr int kAnswers = 40;
  for (auto _ : state) {
    const int vocab = llama3().tokenizer->vocab_size();
    GrammarTokens tokens(*llama3().tokenizer, vocab, {vocab - 1});
    const double begin_us = cpu_us();
    benchmark::DoNotOptimize(tokens.constrain(source, schema));
    prepare_us = cpu_us() - begin_us;
    for (std::vector<double>* times_us : {&prepared_us, &warm_us}) {
      std::mt19937 random(5);
      for (int n = 0; n < kAnswers; ++n) {
        write_answers(**tokens.constrain(source, schema), random, *times_us);
      }
    }
  }
  state.counters["prepare_us"] = prepare_us;
  state.counters["prepared_p99_us"] = quantile(prepared_us, 0.99);
  state.counters["prepared_max_us"] = quantile(prepared_us, 1);
  state.counters["warm_p50_us"] = quantile(warm_us, 0.5);
  state.counters["warm_p99_us"] = quantile(warm_us, 0.99);
}

void compile_time(benchmark::State& state, const std::string& schema) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(Grammar::compile({JsonSchema{.schema = boost::json::parse(schema)}}));
  }
}

void vocabulary_time(benchmark::State& state) {
  if (llama3().tokens == nullptr) {
    state.SkipWithError("needs tokenizers/llama3 in the test data folder");
    return;
  }
  for (auto _ : state) {
    const GrammarTokens tokens(*llama3().tokenizer, llama3().tokenizer->vocab_size(), {0});
    benchmark::DoNotOptimize(&tokens);
  }
}

}  // namespace
}  // namespace protean

int main(int argc, char** argv) {
  for (const auto& [name, schema] : protean::schemas()) {
    benchmark::RegisterBenchmark(("masks/" + name).c_str(), protean::mask_time, schema)
        ->Unit(benchmark::kMillisecond)
        ->Iterations(1);
    benchmark::RegisterBenchmark(("compile/" + name).c_str(), protean::compile_time, schema)
        ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RegisterBenchmark("vocabulary", protean::vocabulary_time)
      ->Unit(benchmark::kMillisecond);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
