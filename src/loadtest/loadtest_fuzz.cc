// Fuzzes the parsers of everything that a load generator reads: traces, streams, metrics, datasets.

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "loadtest/answer_chunk.h"
#include "loadtest/answer_reader.h"
#include "loadtest/prompt.h"
#include "loadtest/report_json.h"
#include "loadtest/server_metrics.h"
#include "loadtest/workload.h"
#include "trace/trace.h"

namespace protean::loadtest {
namespace {

// Checks that an answer gives the same record in one piece and in small ones.
void fuzz_answer(std::string_view bytes, std::size_t piece) {
  RequestRecord whole;
  AnswerReader reader(whole);
  reader.feed(bytes, 1);
  reader.closed(1);
  RequestRecord cut;
  AnswerReader pieces(cut);
  for (std::size_t at = 0; at < bytes.size() && pieces.feed(bytes.substr(at, piece), 1);
       at += piece) {
  }
  pieces.closed(1);
  check(whole.outcome == cut.outcome || whole.outcome == Outcome::kBrokenStream ||
            cut.outcome == Outcome::kBrokenStream,
        "an answer in pieces is the same answer");
  check(whole.outcome != Outcome::kCompleted || whole.first_token_ns >= 0, "an answer has a token");
}

void fuzz_trace(std::string_view text) {
  const auto trace = parse_trace(text, "f");
  if (!trace.ok()) {
    return;
  }
  auto workload = Workload::create({.num_prompts = 20}, &*trace);
  if (!workload.ok()) {
    return;
  }
  TimeNs before_ns = 0;
  while (const auto planned = workload->next()) {
    check(planned->at_ns >= before_ns && planned->input_tokens > 0, "in order, with tokens");
    before_ns = planned->at_ns;
  }
}

}  // namespace
}  // namespace protean::loadtest

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace protean::loadtest;  // NOLINT(google-build-using-namespace)
  if (size < 2) {
    return 0;
  }
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  switch (data[0] % 6) {
    case 0:
      fuzz_trace(text);
      break;
    case 1:
      fuzz_answer(text, 1 + data[1] % 16);
      break;
    case 2:
      (void)parse_answer_chunk(text);
      break;
    case 3:
      (void)parse_server_metrics(text);
      break;
    case 4: {
      const std::size_t half = text.find('\0');
      const std::string_view rest = half == std::string_view::npos ? "" : text.substr(half + 1);
      (void)protean::parse_servegen_client(
          {"c", "t", std::string(text.substr(0, half)), "d", std::string(rest)});
      break;
    }
    default:
      (void)parse_dataset(text, "d");
      (void)parse_recorded_run(text, "r");
  }
  return 0;
}
