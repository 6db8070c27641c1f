// Tests the files of the web pages. A program that is built without them has none.

#include "server/page/page.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

#include "server/page/page_assets.h"

namespace protean {
namespace {

struct PageTest : testing::Test {
  void SetUp() override {
    if (page_assets().empty()) {
      GTEST_SKIP() << "built with -DPROTEAN_WEB=OFF";
    }
  }
  static std::string header(const HttpReply& reply, std::string_view name) {
    for (const auto& [key, value] : reply.headers) {
      if (key == name) {
        return value;
      }
    }
    return "";
  }
};

TEST_F(PageTest, IsSentCompressedOrPlainAndOnlyIfItHasChanged) {
  const auto plain = page_reply(Page::kChat, "", {});
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->content_type, "text/html; charset=utf-8");
  EXPECT_NE(plain->body.find("<!doctype html>"), std::string::npos);
  EXPECT_EQ(header(*plain, "Content-Encoding"), "");
  EXPECT_EQ(header(*plain, "Cache-Control"), "no-cache");

  const auto packed = page_reply(Page::kChat, "", {.headers = {{"accept-encoding", "br, gzip"}}});
  EXPECT_EQ(header(*packed, "Content-Encoding"), "gzip");
  EXPECT_EQ(packed->body.substr(0, 2), "\x1f\x8b");
  EXPECT_NE(header(*packed, "ETag"), header(*plain, "ETag"));
  for (const auto& [accepted, encoding] :
       {std::pair("gzip;q=0", ""), std::pair("gzip; q=0.000, br;q=1", ""),
        std::pair("gzip;q=0.5", "gzip"), std::pair("br;q=0, gzip", "gzip")}) {
    const auto reply = page_reply(Page::kChat, "", {.headers = {{"accept-encoding", accepted}}});
    EXPECT_EQ(header(*reply, "Content-Encoding"), encoding) << accepted;
  }

  const auto same = page_reply(
      Page::kChat, "", {.headers = {{"if-none-match", "\"old\", " + header(*plain, "ETag")}}});
  EXPECT_EQ(same->status, 304);
  EXPECT_TRUE(same->body.empty());
  EXPECT_EQ(page_reply(Page::kChat, "", {.headers = {{"if-none-match", "\"old\""}}})->status, 200);
}

TEST_F(PageTest, EachFileBelongsToItsPagesAndForbidsAllOtherSources) {
  EXPECT_FALSE(page_reply(Page::kChat, "dashboard.html", {}));
  EXPECT_FALSE(page_reply(Page::kDashboard, "index.html", {}));
  EXPECT_FALSE(page_reply(Page::kChat, "assets/none.js", {}));
  int files = 0;
  for (const PageAsset& asset : page_assets()) {
    const bool is_page = asset.path.ends_with(".html");
    for (const Page page : {Page::kChat, Page::kDashboard}) {
      const bool has = page == Page::kChat ? asset.of_chat : asset.of_dashboard;
      const auto reply = page_reply(page, asset.path, {});
      ASSERT_EQ(reply.has_value(), has) << asset.path;
      if (has && !is_page) {
        ++files;
        EXPECT_EQ(reply->body, asset.plain);
        EXPECT_NE(header(*reply, "Cache-Control").find("immutable"), std::string::npos);
        EXPECT_NE(header(*reply, "Content-Security-Policy").find("default-src 'none'"),
                  std::string::npos);
        EXPECT_EQ(header(*reply, "X-Content-Type-Options"), "nosniff");
      }
    }
  }
  EXPECT_GT(files, 4);
}

}  // namespace
}  // namespace protean
