#include "hub/model_name.h"

#include <gtest/gtest.h>

namespace protean::hub {
namespace {

TEST(ModelName, HasARepositoryAndPerhapsAFileAndARevision) {
  const auto plain = parse_model_name("Qwen/Qwen3-0.6B");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->repo, "Qwen/Qwen3-0.6B");
  EXPECT_EQ(plain->branch(), "main");
  const auto full = parse_model_name("a/b.c:Q4_K_M@refs/pr/1");
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->repo, "a/b.c");
  EXPECT_EQ(full->file, "Q4_K_M");
  EXPECT_EQ(full->branch(), "refs/pr/1");
  for (const char* text : {"a/b", "a/b:q8", "a/b@v1", "a/b:x/y.gguf@v1"}) {
    EXPECT_EQ(to_string(*parse_model_name(text)), text);
  }
}

TEST(ModelName, NamesThatLeadElsewhereAreRefused) {
  for (const char* text :
       {"",         "a",       "/",          "a/",      "/b",       "a/b/c",      "../b",
        "a/..",     "a/.b",    "a/b.",       "-a/b",    "a/b--c",   "a/b..c",     "a/b c",
        "a/b%2f",   "a/b.git", "a/b@",       "a/b:",    "a/b@../x", "a/b@x/../y", "a/b:../x",
        "a/b@x//y", "a/b@.x",  "a/b@x.lock", "a/b@x y", "a/b\n"}) {
    EXPECT_FALSE(parse_model_name(text).ok()) << text;
  }
  EXPECT_FALSE(parse_model_name("a/" + std::string(97, 'b')).ok());
  EXPECT_EQ(parse_model_name("gpt2").error().message,
            "'gpt2' is not the name of a model: it needs one slash between organisation and model; "
            "write ORG/NAME, ORG/NAME:Q4_K_M or ORG/NAME@REVISION");
}

}  // namespace
}  // namespace protean::hub
