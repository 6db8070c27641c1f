#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "contract/request.h"
#include "server/api_error.h"
#include "server/generation_call.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// The model behind the API, as text goes in and out of it. Does not own what it points to; both
// outlive the server.
struct ServedModel {
  std::vector<std::string> names;  // at least one; the first is what answers call it by default
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;
  std::string bos_text;  // what a chat template may refer to
  std::string eos_text;
  GenerationDefaults defaults;
  int max_model_len = 0;
  std::function<std::tm()> local_time;  // what strftime_now() tells templates; empty: nothing
  std::int64_t max_text_bytes = 0;      // see most_text_bytes(); 0: any text is tokenised
};

// No longer text can fit the model's context. Looks at the whole vocabulary: to be called once.
std::int64_t most_text_bytes(const Tokenizer& tokenizer, int max_model_len);

using RandomSource = std::function<std::uint64_t()>;

// One engine request per choice of the answer, without ids. Applies the template, tokenises and
// fills in the model's defaults; what cannot fit by its bytes is
// refused before that, and a long prompt takes milliseconds here, on the caller's thread.
Checked<std::vector<Request>> make_requests(const GenerationCall& call, const ServedModel& model,
                                            const RandomSource& random);

}  // namespace protean
