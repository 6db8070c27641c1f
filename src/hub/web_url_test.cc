#include "hub/web_url.h"

#include <gtest/gtest.h>

namespace protean::hub {
namespace {

TEST(WebUrl, IsTakenApartForARequest) {
  const auto url = parse_web_url("https://Hub.test:444/a%20b?x=%2F#part");
  ASSERT_TRUE(url.ok());
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->host, "hub.test");
  EXPECT_EQ(url->port, "444");
  EXPECT_EQ(url->host_header, "Hub.test:444");
  EXPECT_EQ(url->target, "/a%20b?x=%2F");
  EXPECT_EQ(parse_web_url("http://h")->port, "80");
  EXPECT_EQ(parse_web_url("http://h")->target, "/");
  EXPECT_EQ(parse_web_url("https://[::1]:1/")->host, "::1");
  for (const char* text : {"", "h", "ftp://h/", "https://", "https:///x", "https://h/ x"}) {
    EXPECT_FALSE(parse_web_url(text).ok()) << text;
  }
}

TEST(WebUrl, ALocationIsRelativeOrNot) {
  const WebUrl base = *parse_web_url("https://hub.test/a/b?c");
  EXPECT_EQ(resolve_location(base, "/x?y")->text, "https://hub.test/x?y");
  EXPECT_EQ(resolve_location(base, "x")->text, "https://hub.test/a/x");
  EXPECT_EQ(resolve_location(base, "//other.test/x")->host, "other.test");
  EXPECT_EQ(resolve_location(base, "https://s.test/x?name=\"a b\"")->target, "/x?name=%22a%20b%22");
  EXPECT_FALSE(resolve_location(base, "file:///etc/passwd").ok());
  EXPECT_TRUE(base.same_origin(*resolve_location(base, "/x")));
  EXPECT_FALSE(base.same_origin(*resolve_location(base, "http://hub.test/x")));
  EXPECT_FALSE(base.same_origin(*resolve_location(base, "https://hub.test:444/x")));
}

TEST(WebUrl, PercentEncodingKeepsSlashesOfPathsOnly) {
  EXPECT_EQ(encode_path("a b/c#d"), "a%20b/c%23d");
  EXPECT_EQ(encode_path_word("refs/pr/1"), "refs%2Fpr%2F1");
  EXPECT_EQ(decode_percent("a%20b%2"), "a b%2");
}

}  // namespace
}  // namespace protean::hub
