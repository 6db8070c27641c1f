#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tokenizer/hf_json.h"
#include "tokenizer/utf8.h"

// Loads any bytes as a tokenizer.json. A tokenizer that loads must encode, and decode to valid
// UTF-8.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = protean::parse_tokenizer_json(json, "fuzz", {});
  if (!tokenizer) {
    return 0;
  }
  constexpr std::string_view kText =
      " Hello <s>world</s>, it's 1234\n\n \xC3\xA9\xE4\xB8\xAD\xFF ab";
  for (const bool special : {false, true}) {
    const auto ids = (*tokenizer)->encode(kText, {special, special});
    const std::string text = protean::decode(**tokenizer, ids);
    protean::check(protean::utf8_valid_prefix(text) == text.size(), "decoded text is UTF-8");
  }
  return 0;
}
