#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "tokenizer/sentencepiece_model.h"

// Loads any bytes as a SentencePiece tokenizer.model. A tokenizer that loads must encode and
// decode.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto vocabulary = protean::read_sentencepiece_model({reinterpret_cast<const char*>(data), size});
  if (!vocabulary) {
    return 0;
  }
  const auto tokenizer = protean::make_tokenizer(*std::move(vocabulary));
  if (tokenizer) {
    protean::decode(**tokenizer, (*tokenizer)->encode("Hello <s> \xC3\xA9\xFF", {}));
  }
  return 0;
}
