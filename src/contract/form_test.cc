#include "contract/form.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <vector>

#include "contract/morph.h"

namespace protean {
namespace {

ModelSpec small_spec() {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.layers = 4;
  spec.hidden = 64;
  spec.ffn = 128;
  spec.vocab = 100;
  spec.max_context = 128;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
  return spec;
}

const std::vector<DeviceSpec> kDevices = {{.id = {0}}, {.id = {1}}};

Form good_form() {
  return single_device_form(small_spec(), Precision::kBf16, DeviceId{0}, {.blocks = 8});
}

TEST(Form, SingleDeviceFormIsLegal) {
  EXPECT_TRUE(validate(good_form(), small_spec(), kDevices).ok());
  EXPECT_EQ(to_string(good_form()),
            "1 stage x TP 1, layers bf16:4, embeddings bf16, KV bf16 8 blocks of 16 tokens");
}

TEST(Form, KvHasAPrecisionOfItsOwn) {
  Form form = good_form();
  form.kv.precision = KvPrecision::kInt8;
  EXPECT_TRUE(validate(form, small_spec(), kDevices).ok());
  EXPECT_NE(to_string(form).find("layers bf16:4, embeddings bf16, KV int8 8 blocks"),
            std::string::npos);
  EXPECT_EQ(default_kv_precision(Precision::kF32), KvPrecision::kF32);
  EXPECT_EQ(default_kv_precision(Precision::kBf16), KvPrecision::kBf16);
  EXPECT_EQ(default_kv_precision(Precision::kW4), KvPrecision::kBf16);
}

TEST(Form, EmbeddingsHaveEightBitsWithQuantisedLayers) {
  EXPECT_EQ(good_form().embeddings, Precision::kBf16);
  EXPECT_EQ(default_embeddings_precision(Precision::kF32), Precision::kF32);
  for (const Precision layers : {Precision::kW8, Precision::kW4, Precision::kW3}) {
    EXPECT_EQ(default_embeddings_precision(layers), Precision::kW8);
  }
  EXPECT_EQ(default_embeddings_precision(Precision::kW8A8), Precision::kW8A8);
  EXPECT_EQ(default_embeddings_precision(Precision::kW4A8), Precision::kW8A8);
}

TEST(Form, EmbeddingsGoWhereTheirLayersGo) {
  EXPECT_EQ(embeddings_precisions(Precision::kBf16,
                                  std::array{Precision::kBf16, Precision::kW8A7, Precision::kW4A8}),
            (std::vector{Precision::kBf16, Precision::kW8, Precision::kW8A8, Precision::kW8A7}));
  EXPECT_EQ(embeddings_precisions(Precision::kW8,
                                  std::array{Precision::kW8, Precision::kW4, Precision::kW3}),
            (std::vector{Precision::kW8, Precision::kW8A8, Precision::kW8A7}));
}

TEST(Form, LayersMayHaveAllThatIsStoredLikeTheLaddersAndWhatTheyStartAt) {
  Form form = good_form();
  EXPECT_EQ(layer_precisions(form, std::array{Precision::kBf16, Precision::kW4A8}),
            (std::vector{Precision::kBf16, Precision::kW4, Precision::kW4A8}));
  form.layer_precision.front().mlp = Precision::kW8A8;
  EXPECT_EQ(layer_precisions(form, std::array{Precision::kBf16, Precision::kW3}),
            (std::vector{Precision::kBf16, Precision::kW8A8, Precision::kW3}));
}

TEST(Form, HalvesMayBeginEachAtItsOwnPrecision) {
  std::vector<LayerPrecision> layers(4, {Precision::kW4, Precision::kW4});
  layers[2].mlp = Precision::kBf16;
  const Form form = single_device_form(small_spec(), layers, DeviceId{0}, {.blocks = 8});
  EXPECT_TRUE(validate(form, small_spec(), kDevices).ok());
  EXPECT_EQ(form.layer_precision, layers);
  EXPECT_EQ(highest_precision(form), Precision::kBf16);
  EXPECT_EQ(form.embeddings, Precision::kBf16);
  EXPECT_EQ(precision_label(form), "bf16:0.5+w4:3.5");
}

TEST(Form, EveryBrokenRuleIsNamed) {
  const std::vector<std::pair<std::function<void(Form&)>, std::string>> cases = {
      {[](Form& f) { f.group.clear(); }, "no device"},
      {[](Form& f) { f.group[0].device = DeviceId{7}; }, "device 7"},
      {[](Form& f) { f.group.push_back(f.group[0]); }, "used twice"},
      {[](Form& f) { f.group[0].layers.pop_back(); }, "3 layers"},
      {[](Form& f) { f.group[0].layers[2].mlp = {}; }, "copies of layer 2 mlp"},
      {[](Form& f) { f.group[0].embeddings = {}; }, "copies of embeddings"},
      {[](Form& f) { f.shards = 2; }, "copies of layer 0 attention"},
      {[](Form& f) {
         f.group[0].layers[1].attention = {0, 3};
       },
       "layer 1 attention on device 0"},
      {[](Form& f) {
         f.group[0].layers[1].attention = {1, 1};
       },
       "shards 1 to 1 of 1"},
      {[](Form& f) { f.shards = 3; }, "3, is no power of two"},
      {[](Form& f) { f.shards = 4; }, "2 KV heads"},
      {[](Form& f) { f.layer_precision.pop_back(); }, "3 layer precisions"},
      {[](Form& f) { f.kv.blocks = 0; }, "at least one block"},
  };
  for (const auto& [breakage, words] : cases) {
    Form form = good_form();
    breakage(form);
    const Status status = validate(form, small_spec(), kDevices);
    ASSERT_FALSE(status.ok()) << words;
    EXPECT_NE(status.error().message.find(words), std::string::npos) << status.error().message;
  }
}

const std::vector<DeviceId> kEight = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

std::span<const DeviceId> first_devices(int count) {
  return std::span(kEight).first(static_cast<std::size_t>(count));
}

TEST(Form, TwoStagesAreLegal) {
  Form form = divide(good_form(), {.tensor = 1, .stage_layers = {1, 3}}, first_devices(2));
  form.layer_precision[2] = {Precision::kW4, Precision::kW4};
  EXPECT_TRUE(validate(form, small_spec(), kDevices).ok());
  EXPECT_NE(to_string(form).find("2 stages (1, 3 layers) x TP 1"), std::string::npos)
      << to_string(form);
  EXPECT_NE(to_string(form).find("bf16:2,w4:1,bf16:1"), std::string::npos);
  EXPECT_EQ(stages_of(form), (std::vector<Stage>{{0, 1, {0}}, {1, 3, {1}}}));
}

TEST(Form, EveryDivisionHoldsEverythingOnceAndTheEmbeddingsAtBothEnds) {
  ModelSpec spec = small_spec();
  spec.layers = 7;
  spec.attention.kv_heads = 4;
  std::vector<DeviceSpec> devices;
  for (const DeviceId device : kEight) {
    devices.push_back({.id = device});
  }
  for (const int shards : {1, 2, 4}) {
    Form whole = single_device_form(spec, Precision::kBf16, DeviceId{0}, {.blocks = 8});
    whole.shards = shards;
    for (int tensor = 1; tensor <= shards; tensor *= 2) {
      for (int stages = 1; tensor * stages <= 8 && stages <= spec.layers; ++stages) {
        const Division division = even_division(spec.layers, tensor, stages);
        const Form form = divide(whole, division, first_devices(tensor * stages));
        ASSERT_TRUE(validate(form, spec, devices).ok());
        EXPECT_EQ(stages_of(form).size(), static_cast<std::size_t>(stages));
        for (int layer = 0; layer < spec.layers; ++layer) {
          const auto copies = copies_of(form.group, layer, Component::kMlp, shards);
          ASSERT_EQ(copies.size(), 1U);
          EXPECT_EQ(copies[0].size(), static_cast<std::size_t>(tensor));
        }
        EXPECT_EQ(copies_of(form.group, 0, Component::kEmbeddings, shards).size(),
                  stages == 1 ? 1U : 2U);
      }
    }
  }
}

TEST(Holding, CopiesAreFoundAmongRunsOfAnyLength) {
  const auto with = [](ShardRun run) {
    Holding holding = whole_model(1, 4, DeviceId{0});
    holding.layers[0].mlp = run;
    return holding;
  };
  const std::vector<Holding> mixed = {with({0, 2}), with({0, 4}), with({}), with({2, 1}),
                                      with({3, 1})};
  EXPECT_EQ(copies_of(mixed, 0, Component::kMlp, 4), (std::vector<Copy>{{0, 3, 4}, {1}}));
  const std::vector<Holding> hole = {with({0, 2}), with({0, 4}), with({3, 1})};
  EXPECT_TRUE(copies_of(hole, 0, Component::kMlp, 4).empty());
}

TEST(Form, TellsItsPrecisionsAsOneShortLabel) {
  Form form = single_device_form(small_spec(), Precision::kBf16, DeviceId{0}, {.blocks = 1});
  EXPECT_EQ(precision_label(form), "bf16:4");
  form.embeddings = Precision::kW8;
  EXPECT_EQ(precision_label(form), "bf16:4+embeddings:w8");
  Form low = single_device_form(small_spec(), Precision::kW4A8, DeviceId{0}, {.blocks = 1});
  low.embeddings = Precision::kW8A7;
  EXPECT_EQ(precision_label(low), "w4a8:4") << "no fewer bits than the default for such layers";
  low.embeddings = Precision::kBf16;
  EXPECT_EQ(precision_label(low), "w4a8:4");
  form.embeddings = Precision::kBf16;
  form.layer_precision[1].mlp = Precision::kW4;
  form.layer_precision[3] = {Precision::kW8, Precision::kW4};
  EXPECT_EQ(precision_label(form), "bf16:2.5+w8:0.5+w4:1");
  EXPECT_EQ(layers_at(form, Precision::kW8), 0.5);
  EXPECT_EQ(layers_at(form, Precision::kF32), 0);
  EXPECT_NE(to_string(form).find("layers bf16:1,bf16/w4:1,bf16:1,w8/w4:1"), std::string::npos)
      << to_string(form);
}

TEST(TokensAt, AddUpByPrecision) {
  std::vector<TokensAt> sum = {{"bf16:4", 3}};
  add(sum, std::vector<TokensAt>{{"w4:4", 1}, {"bf16:4", 2}});
  ASSERT_EQ(sum.size(), 2U);
  EXPECT_EQ(sum[0].tokens, 5);
  EXPECT_EQ(sum[1].precision, "w4:4");
}

TEST(MorphStep, EditsOneThingOfAForm) {
  const Form form = single_device_form(small_spec(), Precision::kBf16, DeviceId{0}, {.blocks = 9});
  const Form lower = after(form, SwapComponent{1, Component::kMlp, Precision::kW8});
  EXPECT_EQ(lower.layer_precision[1], (LayerPrecision{Precision::kBf16, Precision::kW8}));
  EXPECT_EQ(lower.layer_precision[0], form.layer_precision[0]);
  EXPECT_EQ(after(lower, SwapComponent{1, Component::kMlp, Precision::kBf16}), form);
  EXPECT_EQ(after(form, ResizeKv{12}).kv.blocks, 12);
  EXPECT_EQ(to_string(MorphStep{SwapComponent{1, Component::kMlp, Precision::kW8}}),
            "layer 1 mlp to w8");
}

}  // namespace
}  // namespace protean
