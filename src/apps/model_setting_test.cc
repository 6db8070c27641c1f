#include "apps/model_setting.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace protean {
namespace {

Result<ModelSetting> setting_from(const std::string& fields) {
  return model_setting({}, "q", boost::json::parse(fields).as_object());
}

std::string error_from(const std::string& fields) {
  const auto setting = setting_from(fields);
  return setting.ok() ? "" : setting.error().message;
}

TEST(ModelSetting, FieldsOfAnObjectAreStringsNumbersListsAndSwitches) {
  const auto setting = setting_from(
      R"({"model": "a", "morph_kv": false, "overlap-kv": true, "morph-halves": false,)"
      R"( "max_num_seqs": 3, "morph-precisions": "", "served-model-name": ["b", "c"]})");
  ASSERT_TRUE(setting.ok()) << setting.error().message;
  EXPECT_EQ(setting->model.model, "a");
  EXPECT_FALSE(setting->morph.kv);
  EXPECT_FALSE(setting->morph.halves);
  EXPECT_TRUE(setting->model.group.overlaps_kv);
  EXPECT_EQ(setting->model.max_num_seqs, 3);
  EXPECT_EQ(setting->served_names, (std::vector<std::string>{"b", "c"}));
}

TEST(ModelSetting, AFieldOfAWrongTypeIsNamed) {
  for (const char* fields :
       {R"({"model": "a", "morph": true})", R"({"morph": true, "model": "a"})"}) {
    EXPECT_EQ(error_from(fields), "'morph' takes a value: give a string or a number, not true");
  }
  EXPECT_EQ(error_from(R"({"model": "a", "morph": ["off", "off"]})"),
            "'morph' takes one value, not a list");
  EXPECT_EQ(error_from(R"({"model": "a", "served-model-name": ["b", true]})"),
            "'served-model-name' takes a value: give a string or a number, not true");
  EXPECT_EQ(error_from(R"({"model": "a", "overlap-kv": "yes"})"),
            "'overlap-kv' must be true or false");
  EXPECT_TRUE(error_from(R"({"model": "a", "max_num_seqs": null})").starts_with("'max-num-seqs' "));
  EXPECT_TRUE(
      error_from(R"({"max_num_seqs": "", "model": "a"})").starts_with("--max-num-seqs: ''"));
}

TEST(ModelSetting, TheModelIsAStringThatIsNotEmpty) {
  const std::string end = ": give a path, or a name on a hub that was pulled, as a string";
  EXPECT_EQ(error_from("{}"), "\"model\" is missing" + end);
  EXPECT_EQ(error_from(R"({"model": ""})"), "\"model\" is empty" + end);
  EXPECT_EQ(error_from(R"({"model": 5})"), "\"model\" is 5" + end);
}

TEST(ModelSetting, ATableSaysTheLineOfAWrongType) {
  const std::string path =
      testing::TempDir() + fmt::format("model_setting_test.{}.toml", ::getpid());
  std::ofstream(path) << "[q]\nmodel = \"a\"\nmorph = true\n";
  const auto settings = model_settings({}, {}, path);
  std::filesystem::remove(path);
  ASSERT_FALSE(settings.ok());
  EXPECT_EQ(
      settings.error().message,
      "--models " + path + ": line 3: 'morph' takes a value: give a string or a number, not true");
}

// Returns the intents of models a and b, the latter also named c, or an error.
std::string intents_of(const std::string& lines) {
  ModelSetting common;
  common.intent.intent = lines;
  const auto named = take_named_intents(common);
  if (!named.ok()) {
    return named.error().message;
  }
  std::vector<ModelSetting> settings(2, common);
  settings[0].name = "a";
  settings[1].name = "b";
  settings[1].served_names = {"c"};
  const Status known = name_intents(*named, settings);
  return known.ok() ? settings[0].intent.intent + " " + settings[1].intent.intent
                    : known.error().message;
}

TEST(ModelSetting, AnIntentIsOfAllModelsOrOfTheOneThatItNames) {
  EXPECT_EQ(intents_of(""), " ");
  EXPECT_EQ(intents_of("latency-slo=2s"), "latency-slo=2s latency-slo=2s");
  EXPECT_EQ(intents_of("a=min-latency"), "min-latency ");
  EXPECT_EQ(intents_of("a=latency-slo=2s\nmin-cost"), "latency-slo=2s min-cost");
  EXPECT_EQ(intents_of("c=min-memory\na=cost-slo=3"), "cost-slo=3 min-memory");
}

TEST(ModelSetting, AnIntentForNoModelOrTwiceIsRefused) {
  EXPECT_EQ(intents_of("d=min-cost"),
            "--intent d=min-cost: no model is named \"d\": the models are \"a\", \"b\", \"c\"");
  EXPECT_TRUE(
      intents_of("a=min-cots")
          .starts_with("--intent a=min-cots: intent min-cots is unknown, did you mean min-cost?"));
  EXPECT_TRUE(intents_of("latency-slo=5").starts_with("intent latency-slo=5: the latency of an "));
  EXPECT_EQ(intents_of("b=min-cost\nc=min-memory"),
            "--intent c=min-memory: this model has the intent min-cost already: give one");
  EXPECT_TRUE(intents_of("min-cost\nmin-memory").ends_with("or each model its own as NAME=INTENT"));
  std::vector<ModelSetting> one(1);
  EXPECT_EQ(
      name_intents({"a=min-cost"}, one).error().message,
      "--intent a=min-cost: no model is named \"a\": give a single MODEL its intent without a "
      "name");
}

}  // namespace
}  // namespace protean
