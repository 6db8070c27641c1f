// Parses any bytes as an answer. The result must not depend on how they are cut.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "chat/tool_calls.h"

namespace {

struct Outcome {
  std::string text;

  void add(const std::vector<protean::ToolPiece>& pieces) {
    for (const protean::ToolPiece& piece : pieces) {
      if (const auto* content = std::get_if<protean::ContentPiece>(&piece)) {
        for (const char c : content->text) (text += 'c') += c;
      } else if (const auto* begin = std::get_if<protean::CallBegin>(&piece)) {
        text += 'b' + std::to_string(begin->index) + begin->id + '/' + begin->name;
      } else if (const auto* arguments = std::get_if<protean::ArgumentsPiece>(&piece)) {
        for (const char c : arguments->text) (text += 'a') += c;
      }
    }
  }
};

}  // namespace

// The first byte chooses the format and how many of the following bytes are lengths of pieces.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto format = static_cast<protean::ToolFormat>(data[0] % 9);
  const std::size_t cuts = std::min<std::size_t>(data[0] / 9, size - 1);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1 + cuts, size - 1 - cuts);
  const boost::json::object texts{
      {"properties", boost::json::object{{"s", boost::json::object{{"type", "string"}}}}}};
  const std::vector<protean::OfferedTool> tools = {{"f", texts}, {"get_weather", {}}};

  protean::ToolCallParser whole(format, tools);
  Outcome expected;
  expected.add(whole.push(text));
  expected.add(whole.finish());

  protean::ToolCallParser pieces(format, tools);
  Outcome found;
  std::size_t at = 0;
  for (std::size_t cut = 0; at < text.size(); ++cut) {
    const std::size_t length = cuts == 0 ? 1 : data[1 + cut % cuts];
    const std::string_view piece = text.substr(at, std::max<std::size_t>(length, 1));
    found.add(pieces.push(piece));
    at += piece.size();
  }
  found.add(pieces.finish());
  if (expected.text != found.text) std::abort();
  return 0;
}
