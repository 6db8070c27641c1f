#include "replica/model_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "chat/tool_calls.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

// Other runs of this test may have files there.
fs::path own_path(const std::string& name) {
  return fs::path(testing::TempDir()) / (name + "." + std::to_string(::getpid()));
}

class ModelFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists("models/builtin/config.json")) GTEST_SKIP() << "run from the source folder";
    options_.model = "models/builtin";
    options_.chat_template = own_path("model_files_test.jinja");
  }
  void TearDown() override { fs::remove(options_.chat_template); }
  void write(std::string_view text) { std::ofstream(options_.chat_template) << text; }
  ModelOptions options_;
};

TEST_F(ModelFilesTest, ATemplateGivenReplacesTheModelsAlsoWhereToolFormatsAreLookedFor) {
  write("{{ '[TOOL_CALLS]' if tools }}");
  const auto files = open_model_files(options_);
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_EQ(detect_tool_format(files->chat.template_source), ToolFormat::kMistral);
  write("{{ messages[0].content }}");
  EXPECT_EQ(detect_tool_format(open_model_files(options_)->chat.template_source),
            ToolFormat::kNone);
}

TEST_F(ModelFilesTest, WeightsServeInPlaceOfOthersOfTheSameShapeTokensAndTemplate) {
  write("{{ messages[0].content }}");
  const auto files = open_model_files(options_);
  ASSERT_TRUE(files.ok()) << files.error().message;
  auto again = open_model_files(options_);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_TRUE(same_but_for_weights(*files, *again));
  write("{{ messages[1].content }}");
  EXPECT_FALSE(same_but_for_weights(*files, *open_model_files(options_)));
}

TEST_F(ModelFilesTest, FilesWhoseTokenizerCutsTextInAnotherWayAreOfAnotherModel) {
  const auto files = open_model_files({.model = options_.model});
  ASSERT_TRUE(files.ok()) << files.error().message;
  const fs::path copy = own_path("model_files_test");
  fs::copy(options_.model, copy,
           fs::copy_options::overwrite_existing | fs::copy_options::recursive);
  EXPECT_TRUE(same_but_for_weights(*files, *open_model_files({.model = copy})));
  std::ostringstream read;
  read << std::ifstream(copy / "tokenizer.json", std::ios::binary).rdbuf();
  // The tokens keep their texts.
  for (const auto& [from, to] :
       {std::pair("\"e d\",\n   \"i t\"", "\"i t\",\n   \"e d\""), std::pair("{1,3}", "{1,2}")}) {
    std::string text = read.str();
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, std::string_view(from).size(), to);
    std::ofstream(copy / "tokenizer.json", std::ios::binary) << text;
    const auto other = open_model_files({.model = copy});
    ASSERT_TRUE(other.ok()) << other.error().message;
    EXPECT_FALSE(same_but_for_weights(*files, *other)) << to;
  }
  fs::remove_all(copy);
}

TEST_F(ModelFilesTest, EveryFileThatLoadingReadsIsNoticedWhenItChanges) {
  const fs::path copy = own_path("model_files_test.seen");
  fs::remove_all(copy);
  fs::copy(options_.model, copy);
  options_.model = copy;
  write("{{ messages[0].content }}");
  const auto open = [&] {
    auto files = open_model_files(options_);
    EXPECT_TRUE(files.ok()) << files.error().message;
    EXPECT_TRUE(files->current().ok()) << files->current().error().message;
    return files;
  };
  const auto expect_noticed = [](const ModelFiles& files, const fs::path& file) {
    const Status current = files.current();
    ASSERT_FALSE(current.ok()) << file;
    EXPECT_EQ(current.error().message.find(file.string()), 0U) << current.error().message;
  };
  for (const fs::path& file :
       {copy / "config.json", copy / "generation_config.json", copy / "tokenizer.json",
        copy / "tokenizer_config.json", fs::path(options_.chat_template)}) {
    const auto files = open();
    std::ofstream(file, std::ios::app) << " ";
    expect_noticed(*files, file);
  }
  for (const char* name :
       {"model.safetensors.index.json", "chat_template.jinja", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model"}) {
    const auto files = open();
    std::ofstream(copy / name) << "{}";
    expect_noticed(*files, copy / name);
    fs::remove(copy / name);
    EXPECT_TRUE(files->current().ok()) << name;
  }
  const auto files = open();
  std::ofstream(copy / "README.md") << "nothing that is read";
  EXPECT_TRUE(files->current().ok());
  fs::remove(copy / "generation_config.json");
  expect_noticed(*files, copy / "generation_config.json");
  EXPECT_EQ(files->current().error().code, ErrorCode::kNotFound);
  fs::remove_all(copy);
}

TEST_F(ModelFilesTest, APathThatTheSystemRefusesToFollowIsAnError) {
  const fs::path loop = own_path("model_files_test.loop");
  fs::remove(loop);
  fs::create_symlink(loop, loop);
  for (const fs::path& path : {loop, loop / "model", fs::path(std::string(300, 'x'))}) {
    const auto files = open_model_files({.model = path});
    ASSERT_FALSE(files.ok()) << path;
    EXPECT_NE(files.error().message.find(path.string()), std::string::npos)
        << files.error().message;
  }
  fs::remove(loop);
}

TEST_F(ModelFilesTest, ATemplateGivenThatCannotBeUsedIsAnError) {
  const auto message = [&] {
    const auto files = open_model_files(options_);
    return files.ok() ? std::string() : files.error().message;
  };
  EXPECT_TRUE(
      message().starts_with("--chat-template " + options_.chat_template + ": cannot be read: "))
      << message();
  write("");
  EXPECT_EQ(message(), "--chat-template " + options_.chat_template + ": the file is empty");
  write("{% if %}");
  EXPECT_TRUE(message().starts_with("--chat-template " + options_.chat_template + ": "))
      << message();
}

}  // namespace
}  // namespace protean
