#include "http/request_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace protean {
namespace {

// Reads a stream in pieces of the given size. Returns methods and bodies, then the error.
std::vector<std::string> read_all(const std::string& stream, std::size_t piece) {
  const HttpLimits limits{.max_header_bytes = 300, .max_body_bytes = 100};
  std::vector<std::string> seen;
  std::string held;
  std::size_t given = 0;
  while (true) {
    RequestReader reader(limits);
    while (!reader.done()) {
      const std::size_t used = reader.put(held);
      held.erase(0, used);
      if (reader.error()) {
        seen.push_back(std::to_string(reader.error()->status) + " " + reader.error()->message);
        return seen;
      }
      if (!reader.done()) {
        if (given == stream.size()) {
          return seen;
        }
        held += stream.substr(given, piece);
        given = std::min(given + piece, stream.size());
      }
    }
    seen.push_back(reader.call().method + " " + reader.call().target + " " + reader.take_body());
  }
}

TEST(RequestReader, DoesNotDependOnWhereInputIsCut) {
  const std::string get = "\r\nGET /a HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string post = "POST /b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello";
  const std::string chunked =
      "POST /c HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;a=b\r\none\r\n2\r\n42\r\n0\r\nTrailer: t\r\n\r\n";
  const std::string bad = "GET /d HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n";
  const std::vector<std::string> expected{
      "GET /a ", "POST /b hello", "POST /c one42", "GET /a ",
      "400 a header line begins with a space: folded lines are obsolete"};
  for (std::size_t piece = 1; piece < 80; ++piece) {
    EXPECT_EQ(read_all(get + post + chunked + get + bad, piece), expected) << piece;
  }
}

// Up to eight empty lines before a request are ignored, in one piece or in many.
TEST(RequestReader, IgnoresEightEmptyLinesBeforeARequest) {
  const std::string get = "GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const int lines : {8, 9, 24}) {
    std::string stream;
    for (int i = 0; i < lines; ++i) {
      stream += "\r\n";
    }
    stream += get;
    const std::vector<std::string> whole = read_all(stream, stream.size());
    EXPECT_EQ(whole.front() == "GET /a ", lines == 8) << whole.front();
    for (std::size_t piece = 1; piece < stream.size(); ++piece) {
      EXPECT_EQ(read_all(stream, piece), whole) << lines << " lines, pieces of " << piece;
    }
  }
}

TEST(RequestReader, BoundsHeadersBodiesAndTheirFraming) {
  const std::string chunked =
      "POST /c HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string wordy;
  for (int i = 0; i < 50; ++i) {
    wordy += "1;why=because\r\nx\r\n";
  }
  const std::pair<std::string, std::string> table[] = {
      {"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(300, 'x'), "431"},
      {chunked + wordy + "0\r\n\r\n", "413"},
      {chunked + "1;" + std::string(1000, 'x'), "431"},
      {chunked + "0\r\nX: " + std::string(1000, 'x'), "431"},
      {chunked + "70\r\n" + std::string(112, 'x') + "\r\n0\r\n\r\n", "413"},
      {"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 101\r\n\r\n", "413"},
  };
  for (const auto& [stream, status] : table) {
    for (const std::size_t piece : {1, 7, 4096}) {
      const auto seen = read_all(stream, piece);
      ASSERT_EQ(seen.size(), 1U) << stream;
      EXPECT_EQ(seen[0].substr(0, 3), status) << stream;
    }
  }
}

TEST(RequestReader, KeepsAllHeadersByLowerCaseName) {
  RequestReader reader({});
  reader.put("GET / HTTP/1.1\r\nHost: localhost\r\nX-One: 1\r\nx-one: 2\r\nTraceparent: t\r\n\r\n");
  ASSERT_TRUE(reader.done());
  const HttpCall call = reader.call();
  EXPECT_EQ(call.header("x-one"), "1");
  EXPECT_EQ(call.header("traceparent"), "t");
  EXPECT_EQ(call.header("none"), "");
  EXPECT_EQ(call.headers.size(), 4U);
}

}  // namespace
}  // namespace protean
