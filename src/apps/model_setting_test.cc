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

}  // namespace
}  // namespace protean
