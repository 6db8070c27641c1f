#include "apps/measured_quality.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cost/pruned_spec.h"
#include "model/variant_file.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

ModelSpec spec_of() {
  ModelSpec spec{.architecture = "llama", .layers = 2, .hidden = 512, .ffn = 1024, .vocab = 300};
  spec.attention = {.heads = 8, .kv_heads = 4, .head_dim = 64};
  return spec;
}

Form form_at(Precision precision, KvPrecision kv = KvPrecision::kBf16) {
  return single_device_form(spec_of(), precision, DeviceId{0}, {.precision = kv});
}

struct MeasuredQualityTest : testing::Test {
  MeasuredQualityTest() {
    for (const char* name : {"base", "copy"}) {
      fs::create_directories(folder / name);
    }
  }
  ~MeasuredQualityTest() override { fs::remove_all(folder); }

  std::optional<Configuration> stored(const char* name, const ModelSpec& spec,
                                      const Form& form) const {
    return stored_as({folder / name, spec, form}, {folder / "base", base, full});
  }

  const fs::path folder =
      fs::path(testing::TempDir()) / fmt::format("measured_quality_test.{}", ::getpid());
  const ModelSpec base = spec_of();
  const Form full = form_at(Precision::kBf16);
};

TEST_F(MeasuredQualityTest, APrecisionOfTheSameModelIsAConfiguration) {
  const auto found = stored("base", base, form_at(Precision::kW4, KvPrecision::kInt8));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(*found, (Configuration{.weights = Precision::kW4, .kv = KvPrecision::kInt8}));
  EXPECT_EQ(stored("base", base, form_at(Precision::kS24))->pruning.kind, PruningKind::kTwoOfFour);
  Form mixed = form_at(Precision::kW4);
  mixed.layer_precision[1].mlp = Precision::kW8;
  EXPECT_FALSE(stored("base", base, mixed).has_value());
}

TEST_F(MeasuredQualityTest, AnotherModelOfTheSameSizesIsNone) {
  EXPECT_FALSE(stored("copy", base, form_at(Precision::kBf16)).has_value());
  EXPECT_FALSE(stored("copy", base, form_at(Precision::kW4)).has_value());
}

TEST_F(MeasuredQualityTest, ACopyIsAConfigurationIfItSaysHowItWasMade) {
  ModelSpec quantised = base;
  quantised.stored.precision = Precision::kW4;
  EXPECT_FALSE(stored("copy", quantised, form_at(Precision::kW4)).has_value());
  std::ofstream(folder / "copy" / "config.json")
      << R"({"quantization_config": {"quant_method": "gptq"}})";
  ASSERT_TRUE(stored("copy", quantised, form_at(Precision::kW4)).has_value());
  EXPECT_EQ(stored("copy", quantised, form_at(Precision::kW4))->method, WeightMethod::kGptq);
  const ModelSpec smaller = pruned_spec(base, {.kind = PruningKind::kStructured, .percent = 25});
  const auto pruned = stored("copy", smaller, form_at(Precision::kBf16));
  ASSERT_TRUE(pruned.has_value());
  EXPECT_EQ(pruned->pruning.kind, PruningKind::kStructured);
  EXPECT_EQ(pruned_spec(base, pruned->pruning).ffn, smaller.ffn);
}

TEST_F(MeasuredQualityTest, PlansFindWhatWasKept) {
  const std::string identity = [&] {
    std::ofstream(folder / "base" / "model.safetensors") << "weights";
    const auto model = identify_model(folder / "base", base);
    return model.ok() ? model->hex() : "";
  }();
  const Form w8 = form_at(Precision::kW8);
  ASSERT_TRUE(keep_quality({folder / "base", base, w8}, {folder / "base", base, full}, 1.25,
                           folder / "cache")
                  .ok());
  std::vector<EstimatedConfiguration> candidates(2);
  candidates[0].configuration = {.tensor = 2, .stages = 2, .weights = Precision::kW8};
  candidates[1].configuration = {.weights = Precision::kW8, .kv = KvPrecision::kInt8};
  const auto ratios = measured_ratios({identity, base}, candidates, folder / "cache");
  EXPECT_EQ(ratios[0], 1.25);
  EXPECT_FALSE(ratios[1].has_value());
}

}  // namespace
}  // namespace protean
