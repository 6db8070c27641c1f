// Compares every architecture row, read from files in users' formats, with the reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

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

struct Case {
  NamedSpec model;
  Precision precision;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model.name;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const NamedSpec& model : architecture_specs()) {
    cases.push_back({model, Precision::kF32});
    cases.push_back({model, Precision::kBf16});
  }
  return cases;
}

class Architectures : public testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Checkpoint> open(const Format& format) {
    const std::filesystem::path path = directory_.path() / format.name;
    format.write(path, GetParam().model.spec);
    auto checkpoint = open_checkpoint(path);
    EXPECT_TRUE(checkpoint.ok()) << format.name << ": " << checkpoint.error().message;
    return checkpoint.ok() ? std::move(*checkpoint) : nullptr;
  }

 private:
  TemporaryDirectory directory_;
};

TEST_P(Architectures, ServedAsTheReferenceSays) {
  const ModelSpec& spec = GetParam().model.spec;
  for (const Format& format : formats()) {
    if (format.name.ends_with(".gguf") && !has_gguf(spec)) {
      continue;
    }
    SCOPED_TRACE(format.name);
    const std::unique_ptr<Checkpoint> checkpoint = open(format);
    ASSERT_NE(checkpoint, nullptr);
    ForwardCheck(*checkpoint, GetParam().precision).everything();
  }
}

// Two shards are added up in a tree, which gives other bits than one, but the same for any chunks.
TEST_P(Architectures, ServedInTwoShards) {
  if (!can_shard(GetParam().model.spec, 2) || GetParam().precision != Precision::kF32) {
    GTEST_SKIP() << "the family cannot be sharded, or this model has too few KV heads";
  }
  const std::unique_ptr<Checkpoint> checkpoint = open(formats()[0]);
  ASSERT_NE(checkpoint, nullptr);
  ForwardCheck check(*checkpoint, GetParam().precision, 2);
  check.one_token_at_a_time();
  check.chunked_prefill();
}

// Reader and both forward passes could agree on a wrong row order of one format. Two formats of the
// same model reveal that.
TEST_P(Architectures, BothFormatsAreTheSameModel) {
  if (!has_gguf(GetParam().model.spec)) {
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
  const auto from_hf = ReferenceModel(*hf, false).logits(tokens);
  const auto from_gguf = ReferenceModel(*gguf, false).logits(tokens);
  double worst = 0.0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::size_t id = 0; id < from_hf[i].size(); ++id) {
      worst = std::max(worst, std::abs(from_hf[i][id] - from_gguf[i][id]));
    }
  }
  EXPECT_LT(worst, 1e-5);  // rope divisors are f32 in a GGUF
}

INSTANTIATE_TEST_SUITE_P(Rows, Architectures, testing::ValuesIn(all_cases()), [](const auto& info) {
  return info.param.model.name + "_" + std::string(to_string(info.param.precision));
});

}  // namespace
}  // namespace protean
