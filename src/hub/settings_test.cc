#include "hub/settings.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>

namespace protean::hub {
namespace {

Environment of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? "" : found->second;
  };
}

TEST(HubSettings, TheCacheLiesWhereOtherToolsLook) {
  const auto cache = [](std::map<std::string, std::string> variables) {
    return read_settings(of(std::move(variables)))->cache.string();
  };
  EXPECT_EQ(cache({{"HOME", "/h"}}), "/h/.cache/huggingface/hub");
  EXPECT_EQ(cache({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}), "/x/huggingface/hub");
  EXPECT_EQ(cache({{"HOME", "/h"}, {"HF_HOME", "~/f"}}), "/h/f/hub");
  EXPECT_EQ(cache({{"HOME", "/h"}, {"HF_HOME", "/f"}, {"HF_HUB_CACHE", "/c"}}), "/c");
  EXPECT_FALSE(read_settings(of({})).ok());
}

TEST(HubSettings, ATokenComesFromTheEnvironmentOrItsFile) {
  const std::string path = testing::TempDir() + "settings_test_token";
  std::ofstream(path) << "hf_file\n";
  const std::map<std::string, std::string> base{{"HOME", "/h"}, {"HF_TOKEN_PATH", path}};
  EXPECT_EQ(read_settings(of(base))->token, "hf_file");
  EXPECT_EQ(read_settings(of(base))->token_source, path);
  auto with = base;
  with["HF_TOKEN"] = " hf_variable\r\n";  // a line break would begin another field
  EXPECT_EQ(read_settings(of(with))->token, "hf_variable");
  EXPECT_EQ(read_settings(of(with))->token_source, "HF_TOKEN");
  with["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1";
  EXPECT_EQ(read_settings(of(with))->token, "");
}

TEST(HubSettings, TheEndpointIsAUrlWithoutFinalSlash) {
  EXPECT_EQ(read_settings(of({{"HOME", "/h"}, {"HF_ENDPOINT", "https://hub.test/x/"}}))->endpoint,
            "https://hub.test/x");
  EXPECT_FALSE(read_settings(of({{"HOME", "/h"}, {"HF_ENDPOINT", "hub.test"}})).ok());
  EXPECT_TRUE(read_settings(of({{"HOME", "/h"}, {"HF_HUB_OFFLINE", "yes"}}))->offline);
  EXPECT_FALSE(read_settings(of({{"HOME", "/h"}, {"HF_HUB_OFFLINE", "0"}}))->offline);
}

TEST(HubSettings, ATimeoutIsANumberOfSeconds) {
  const auto of_timeout = [](const std::string& text) {
    return read_settings(of({{"HOME", "/h"}, {"HF_HUB_DOWNLOAD_TIMEOUT", text}}));
  };
  EXPECT_EQ(of_timeout("")->patience, std::chrono::seconds(10));
  EXPECT_EQ(of_timeout("120")->patience, std::chrono::seconds(120));
  for (const char* wrong : {"0", "-3", "10x", "abc", "99999999999"}) {
    const auto settings = of_timeout(wrong);
    ASSERT_FALSE(settings.ok()) << wrong;
    EXPECT_NE(settings.error().message.find("HF_HUB_DOWNLOAD_TIMEOUT"), std::string::npos);
  }
}

std::string proxy_of(const ProxyRules& rules, std::string_view url) {
  const auto proxy = proxy_for(rules, *parse_web_url(url));
  return !proxy.ok() ? "error" : *proxy ? (*proxy)->url.host + ":" + (*proxy)->url.port : "";
}

TEST(Proxy, EachSchemeHasItsOwn) {
  const ProxyRules rules{.https = "http://p:1", .http = "q:2", .direct = ""};
  EXPECT_EQ(proxy_of(rules, "https://a.test/"), "p:1");
  EXPECT_EQ(proxy_of(rules, "http://a.test/"), "q:2");
  EXPECT_EQ(proxy_of({}, "https://a.test/"), "");
  EXPECT_EQ(proxy_of({.https = "socks5://p:1", .http = {}, .direct = {}}, "https://a.test/"),
            "error");
  const auto proxy = proxy_for({.https = "http://user:pa%20ss@p:1", .http = {}, .direct = {}},
                               *parse_web_url("https://a.test/"));
  EXPECT_EQ((*proxy)->credentials, "Basic dXNlcjpwYSBzcw==");
}

TEST(Proxy, HostsOfNoProxyAreReachedDirectly) {
  const auto direct = [](const char* entries, const char* url) {
    return proxy_of({.https = "p:1", .http = {}, .direct = entries}, url).empty();
  };
  EXPECT_TRUE(direct("*", "https://a.test/"));
  EXPECT_TRUE(direct("x, a.test", "https://a.test/"));
  EXPECT_TRUE(direct(".a.test", "https://b.a.test/"));
  EXPECT_TRUE(direct("a.test", "https://b.A.test/"));
  EXPECT_TRUE(direct("a.test:8443", "https://a.test:8443/"));
  EXPECT_TRUE(direct("::1", "https://[::1]/"));
  EXPECT_TRUE(direct("[::1]:443", "https://[::1]/"));
  EXPECT_FALSE(direct("a.test:8443", "https://a.test/"));
  EXPECT_FALSE(direct("a.test", "https://ba.test/"));
  EXPECT_FALSE(direct(" , ,", "https://a.test/"));
  EXPECT_FALSE(direct("[", "https://a.test/"));
}

}  // namespace
}  // namespace protean::hub
