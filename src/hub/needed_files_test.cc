#include "hub/needed_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace protean::hub {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<std::string>;

Paths needed(const std::string& file, const Paths& paths) {
  auto found = needed_files({.repo = "a/b", .file = file, .revision = {}}, paths);
  if (!found.ok()) {
    return {found.error().message};
  }
  std::sort(found->begin(), found->end());
  return *found;
}

TEST(NeededFiles, OneCopyOfTheWeightsWithItsTexts) {
  EXPECT_EQ(needed("", {"README.md", "config.json", "model.safetensors", "pytorch_model.bin",
                        "onnx/model.onnx", "original/x.pth", "tokenizer.json", "vocab.json"}),
            (Paths{"config.json", "model.safetensors", "tokenizer.json", "vocab.json"}));
  EXPECT_EQ(
      needed("", {"config.json", "consolidated.safetensors", "model-00001-of-00002.safetensors",
                  "model-00002-of-00002.safetensors", "model.safetensors.index.json",
                  "sub/model-00001-of-00002.safetensors", "tokenizer.model"}),
      (Paths{"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
             "model.safetensors.index.json", "tokenizer.model"}));
}

TEST(NeededFiles, OneGgufByItsQuantisationOrName) {
  const Paths paths = {"m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "m.Q8_0.gguf", "mmproj-Q8_0.gguf",
                       "x/m-IQ4_XS.gguf"};
  EXPECT_EQ(needed("Q4_K_M", paths), Paths{"m-Q4_K_M.gguf"});
  EXPECT_EQ(needed("UD-Q4_K_M", paths), Paths{"m-UD-Q4_K_M.gguf"});
  EXPECT_EQ(needed("q8_0", paths), Paths{"m.Q8_0.gguf"});
  EXPECT_EQ(needed("iq4_xs", paths), Paths{"x/m-IQ4_XS.gguf"});
  EXPECT_EQ(needed("m-IQ4_XS.gguf", paths), Paths{"x/m-IQ4_XS.gguf"});
  EXPECT_EQ(needed("8_0", {"m-Q8_0.gguf"}),
            Paths{"a/b has no GGUF called 8_0; it has m-Q8_0.gguf"});
  EXPECT_EQ(needed("", {"m-Q8_0.gguf", "README.md"}), Paths{"m-Q8_0.gguf"});
  EXPECT_EQ(needed("Q8_0", {"x-Q8_0.gguf", "y-Q8_0.gguf"}),
            Paths{"a/b:Q8_0 is several files: x-Q8_0.gguf, y-Q8_0.gguf; write the name of one "
                  "after ':'"});
}

TEST(NeededFiles, AllPartsOfASplitGguf) {
  const Paths parts = {"q/m-Q4_K_M-00001-of-00003.gguf", "q/m-Q4_K_M-00002-of-00003.gguf",
                       "q/m-Q4_K_M-00003-of-00003.gguf"};
  Paths paths = parts;
  EXPECT_EQ(needed("", paths), parts);
  paths.insert(paths.end(), {"m-Q8_0.gguf", "m-Q8_0-00001-of-0002.gguf"});
  EXPECT_EQ(needed("Q4_K_M", paths), parts);
  EXPECT_EQ(needed("m-Q4_K_M-00001-of-00003.gguf", paths), parts);
  EXPECT_EQ(needed("Q4_K_M", {parts[0], parts[2]}),
            Paths{"q/m-Q4_K_M-00001-of-00003.gguf of a/b is split, and "
                  "q/m-Q4_K_M-00002-of-00003.gguf is not there"});
}

TEST(NeededFiles, ARepositoryWithoutAModelIsAnError) {
  EXPECT_EQ(needed("", {"pytorch_model.bin", "config.json"}),
            Paths{"a/b has no config.json with *.safetensors and no GGUF: its weights are pickles, "
                  "which can run code and are not read"});
  EXPECT_EQ(needed("", {}), Paths{"a/b has no config.json with *.safetensors and no GGUF"});
  EXPECT_EQ(needed("", {"config.json", "model.safetensors", "vocab.json"}),
            Paths{"a/b has no tokenizer (tokenizer.json, tokenizer.model, or vocab.json with "
                  "merges.txt): choose a repository that has one"});
}

class SnapshotTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& path, std::string_view text = "x") {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
  Paths missing(const std::string& file = "") {
    const auto model = look_into_snapshot({.repo = "a/b", .file = file, .revision = {}}, folder_);
    return model.ok() ? model->missing : Paths{"error: " + model.error().message};
  }
  fs::path folder_ = fs::path(testing::TempDir()) / ("snapshot" + std::to_string(::getpid()));
};

TEST_F(SnapshotTest, SaysWhatIsMissing) {
  EXPECT_EQ(missing(), (Paths{"config.json", "tokenizer.json", "model.safetensors"}));
  write("config.json");
  write("vocab.json");
  EXPECT_EQ(missing(), (Paths{"tokenizer.json", "model.safetensors"}));
  write("merges.txt");
  write("model.safetensors.index.json",
        R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})");
  write("s1.safetensors");
  EXPECT_EQ(missing(), Paths{"s2.safetensors"});
  fs::create_symlink("nowhere", folder_ / "s2.safetensors");  // a blob that was removed
  EXPECT_EQ(missing(), Paths{"s2.safetensors"});
  fs::remove(folder_ / "s2.safetensors");
  write("s2.safetensors");
  EXPECT_EQ(missing(), Paths{});
  EXPECT_EQ(missing("Q4_K_M"), Paths{"Q4_K_M"});
  write("d/m-Q4_K_M.gguf");
  EXPECT_EQ(missing("q4_k_m"), Paths{});
  write("e/n-Q5_K_M-00001-of-00002.gguf");
  EXPECT_EQ(missing("Q5_K_M"), Paths{"e/n-Q5_K_M-00002-of-00002.gguf"});
  write("e/n-Q5_K_M-00002-of-00002.gguf");
  EXPECT_EQ(missing("Q5_K_M"), Paths{});
  write("model.safetensors.index.json", "{}");
  EXPECT_EQ(missing().front().substr(0, 6), "error:");
}

}  // namespace
}  // namespace protean::hub
