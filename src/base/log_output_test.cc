#include "base/log_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace protean {
namespace {

// Captures what is written to standard error while it lives.
template <class Act>
std::string written(Act act) {
  testing::internal::CaptureStderr();
  act();
  return testing::internal::GetCapturedStderr();
}

struct LogOutput : testing::Test {
  ~LogOutput() override {
    log::set_format(log::Format::kText);
    log::set_level(log::Level::kInfo);
  }
};

TEST_F(LogOutput, TextAndJsonHoldTheSame) {
  const auto say = [] {
    log::write(log::Level::kInfo, "request",
               {{"id", std::string("a\"b\nc\xFF")}, {"status", std::int64_t{200}}, {"ms", 1.26}});
  };
  const std::string text = written(say);
  EXPECT_NE(text.find(" info request id=a\"b\\x0ac? status=200 ms=1.3\n"), std::string::npos)
      << text;
  log::set_format(log::Format::kJson);
  const std::string json = written(say);
  EXPECT_TRUE(json.starts_with("{\"time\":\"2")) << json;
  EXPECT_TRUE(json.ends_with(
      R"("level":"info","message":"request","id":"a\"b\u000ac?","status":200,"ms":1.3})"
      "\n"))
      << json;
}

TEST_F(LogOutput, LevelsAreNamedAndObeyed) {
  log::set_level(*log::parse_level("warning"));
  EXPECT_EQ(written([] { log::info("quiet"); }), "");
  EXPECT_NE(written([] { log::warning("loud"); }).find("warning loud"), std::string::npos);
  EXPECT_FALSE(log::parse_level("loud").ok());
}

TEST_F(LogOutput, LoggingDoesNotWaitForAPipeThatIsNotRead) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int saved = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  const std::string line(1000, 'x');
  std::int64_t dropped = 0;
  std::thread reader;
  {
    const log::Background background;
    // The queue and the batch that is being written hold at most 8192 lines each.
    for (int i = 0; i < 30'000; ++i) {
      log::info("{}", line);
    }
    dropped = log::dropped_lines();
    reader = std::thread([&] {  // reads now, so that the rest can be flushed
      std::string bytes(1 << 16, ' ');
      while (::read(ends[0], bytes.data(), bytes.size()) > 0) {
      }
    });
  }
  ::dup2(saved, STDERR_FILENO);
  ::close(ends[1]);
  ::close(saved);
  reader.join();
  ::close(ends[0]);
  EXPECT_GT(dropped, 10'000);
}

}  // namespace
}  // namespace protean
