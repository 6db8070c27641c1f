// Renders any bytes as a template with a fixed conversation.

#include <boost/json/parse.hpp>
#include <cstdint>
#include <string_view>

#include "jinja/template.h"

namespace {

constexpr std::string_view kConversation =
    R"([{"role":"system","content":"S é日"},{"role":"user","content":"Hi <b>"},
        {"role":"assistant","content":null,"tool_calls":[{"id":"123456789","type":"function",
          "function":{"name":"f","arguments":"{\"a\":[1,2.5,null,true]}"}}]},
        {"role":"tool","tool_call_id":"123456789","content":"r\nr"}])";
constexpr std::string_view kTools =
    R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object",
        "properties":{"a":{"type":"array","items":{"type":"string"}}},"required":["a"]}}}])";

// Small, so that loops end soon: the fuzzer looks for errors that limits do not catch.
constexpr protean::jinja::Limits kLimits{
    .steps = 20'000, .value_bytes = 4 << 20, .output_bytes = 1 << 16};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace json = boost::json;
  static const protean::jinja::Names names{.values = {{"messages", json::parse(kConversation)},
                                                      {"tools", json::parse(kTools)},
                                                      {"bos_token", "<s>"},
                                                      {"eos_token", "</s>"},
                                                      {"add_generation_prompt", true}},
                                           .is_own = {},
                                           .now = std::tm{.tm_mday = 1, .tm_year = 124}};
  const auto parsed = protean::jinja::Template::parse({reinterpret_cast<const char*>(data), size});
  if (parsed.ok()) static_cast<void>(parsed->render(names, kLimits));
  return 0;
}
