// Compares every architecture row, read from files in users' formats, with the reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/repetitions_for_test.h"
#include "tests/checkpoints/checkpoints.h"
#include "tests/reference/forward_check.h"

namespace protean {
namespace {

void write_hf(const std::filesystem::path& path, const ModelSpec& spec, SafetensorsType type) {
  std::filesystem::create_directory(path);
  write_hf_checkpoint(path, spec, {.type = type});
}

void write_gguf(const std::filesystem::path& path, const ModelSpec& spec, GgufType type) {
  write_gguf_checkpoint(path, spec, {.type = type});
}

struct Format {
  std::string name;
  void (*write)(const std::filesystem::path& path, const ModelSpec& spec);
};

const std::vector<Format>& formats() {
  using Path = std::filesystem::path;
  static const std::vector<Format> all = {
      {"hf_f32", [](const Path& p, const ModelSpec& s) { write_hf(p, s, SafetensorsType::kF32); }},
      {"hf_bf16",
       [](const Path& p, const ModelSpec& s) { write_hf(p, s, SafetensorsType::kBf16); }},
      {"f32.gguf", [](const Path& p, const ModelSpec& s) { write_gguf(p, s, GgufType::kF32); }},
      {"bf16.gguf", [](const Path& p, const ModelSpec& s) { write_gguf(p, s, GgufType::kBf16); }},
  };
  return all;
}

class Architectures : public testing::TestWithParam<NamedSpec> {
 protected:
  const ModelSpec& spec() const { return GetParam().spec; }

  std::unique_ptr<Checkpoint> open(const Format& format) {
    const std::filesystem::path path = directory_.path() / format.name;
    format.write(path, spec());
    auto checkpoint = open_checkpoint(path);
    EXPECT_TRUE(checkpoint.ok()) << format.name << ": " << checkpoint.error().message;
    return checkpoint.ok() ? std::move(*checkpoint) : nullptr;
  }

  void check_formats(Precision precision);

 private:
  TemporaryDirectory directory_;
};

// Compares what is served from each format with the reference, and formats with each other. How
// steps are made does not depend on the format, so one format goes through all of it.
void Architectures::check_formats(Precision precision) {
  // GGUF files of some architectures do not tell the window, which is none for shorter texts.
  const int window = spec().attention.sliding_window;
  std::map<std::string, std::vector<TokenId>> tokens;  // by format
  for (const Format& format : formats()) {
    const bool first = format.name == formats()[0].name;
    if (format.name.ends_with(".gguf") && !has_gguf(spec())) {
      continue;
    }
    if (instrumented() && precision == Precision::kBf16 && !first && format.name != "bf16.gguf") {
      continue;  // that file and the first one stand for all
    }
    SCOPED_TRACE(format.name);
    const std::unique_ptr<Checkpoint> checkpoint = open(format);
    ASSERT_NE(checkpoint, nullptr);
    ForwardCheck check(*checkpoint, precision);
    if (first) {
      check.everything();
    } else {
      check.one_token_at_a_time();
    }
    std::vector<TokenId>& likeliest = tokens[format.name] = check.likeliest_tokens();
    likeliest.resize(
        std::min(likeliest.size(), static_cast<std::size_t>(window > 0 ? window : 75)));
  }
  // Norms of bf16 files differ: they are f32 in a GGUF. At bf16 close logits may change places,
  // since the divisors of rope are f32 in a GGUF too.
  if (has_gguf(spec()) && precision == Precision::kF32) {
    EXPECT_EQ(tokens.at("f32.gguf"), tokens.at("hf_f32"));
  }
}

TEST_P(Architectures, AreServedAsTheReferenceSaysAtF32) {
  check_formats(Precision::kF32);
}

TEST_P(Architectures, AreServedAsTheReferenceSaysAtBf16) {
  check_formats(Precision::kBf16);
}

TEST_P(Architectures, AreServedAsTheReferenceSaysAtW8AndW4) {
  const std::unique_ptr<Checkpoint> checkpoint = open(formats()[0]);
  ASSERT_NE(checkpoint, nullptr);
  for (const Precision precision : {Precision::kW8, Precision::kW4}) {
    SCOPED_TRACE(to_string(precision));
    ForwardCheck check(*checkpoint, precision);
    check.one_token_at_a_time();
    check.chunked_prefill();
    check.preempted_and_recomputed();
  }
}

// Two shards are added up in a tree, which gives other bits than one, but the same for any chunks.
TEST_P(Architectures, AreServedInTwoShards) {
  if (!can_shard(spec(), 2)) {
    GTEST_SKIP() << "the model has too few KV heads";
  }
  const std::unique_ptr<Checkpoint> checkpoint = open(formats()[0]);
  ASSERT_NE(checkpoint, nullptr);
  ForwardCheck check(*checkpoint, Precision::kF32, 2);
  check.one_token_at_a_time();
  check.chunked_prefill();
}

// Reader and both forward passes could agree on a wrong row order of one format. Two formats of the
// same model reveal that.
TEST_P(Architectures, AreTheSameModelInBothFormats) {
  if (!has_gguf(spec())) {
    GTEST_SKIP() << "there are no GGUF files of the family";
  }
  const std::unique_ptr<Checkpoint> hf = open(formats()[0]);
  const std::unique_ptr<Checkpoint> gguf = open(formats()[2]);
  ASSERT_TRUE(hf != nullptr && gguf != nullptr);
  // The text is not longer than a window, which GGUF cannot describe for some architectures.
  const int window = hf->spec().attention.sliding_window;
  std::vector<TokenId> tokens;
  for (int i = 0; i < (window > 0 ? window : 40); ++i) {
    tokens.push_back((i * 37 + 11) % hf->spec().vocab);
  }
  const auto from_hf = ReferenceModel(*hf, Precision::kF32).logits(tokens);
  const auto from_gguf = ReferenceModel(*gguf, Precision::kF32).logits(tokens);
  double worst = 0.0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::size_t id = 0; id < from_hf[i].size(); ++id) {
      worst = std::max(worst, std::abs(from_hf[i][id] - from_gguf[i][id]));
    }
  }
  EXPECT_LT(worst, 1e-5);  // rope divisors are f32 in a GGUF
}

INSTANTIATE_TEST_SUITE_P(Rows, Architectures, testing::ValuesIn(architecture_specs()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace protean
