#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "chat/tool_calls.h"
#include "contract/morph.h"
#include "contract/request.h"
#include "server/api_error.h"
#include "server/format_compiler.h"
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
  int embedding_size = 0;
  ToolFormat tool_format = ToolFormat::kNone;  // how it writes tool calls
  bool special_tokens_in_content = false;      // a chat's messages may hold special tokens
  std::shared_ptr<FormatConstraints> formats;  // null: no structured output
  Pooling pooling = Pooling::kMean;            // of embeddings
  std::function<std::tm()> local_time;  // what strftime_now() tells templates; empty: nothing
  FormStatus form;                      // at start
  std::int64_t max_text_bytes = 0;      // see most_text_bytes(); 0: any text is tokenised
};

// No longer text can fit the model's context. Looks at the whole vocabulary: to be called once.
std::int64_t most_text_bytes(const Tokenizer& tokenizer, int max_model_len);

// The tokens that end an answer of their own accord.
std::vector<TokenId> end_tokens(const Tokenizer& tokenizer, const GenerationDefaults& defaults);

using RandomSource = std::function<std::uint64_t()>;

// The engine's request for one choice of an answer, without an id, and what the answer's text needs
// to know of it.
struct PreparedChoice {
  Request request;
  std::string echo;   // the prompt's text, where the answer begins with it
  std::string begun;  // text of the answer that is part of the prompt already: a tool call's begin
};

// Applies the template, tokenises, compiles the answer's form and fills in the model's defaults.
// What cannot fit by its bytes is refused before that. Any thread; a long prompt takes long.
// `chance` is where seeds come from that the call does not give.
Checked<std::vector<PreparedChoice>> prepare(const GenerationCall& call, const ServedModel& model,
                                             std::uint64_t chance);

// Whether prepare() would hold up the io thread: long text, or a form not seen before.
bool takes_long(const GenerationCall& call, const ServedModel& model);
inline constexpr std::int64_t kLongTextBytes = 32 * 1024;
std::int64_t input_bytes(const GenerationCall& call);  // of text

// The prompt of a chat, with nothing truncated, as it goes to the model.
Checked<std::vector<TokenId>> chat_tokens(const GenerationCall& call, const ServedModel& model);
// Refuses what cannot fit by its bytes.
std::optional<ApiError> refuse_text(std::int64_t bytes, std::string_view param,
                                    const ServedModel& model);
// Refuses ids beyond the vocabulary.
std::optional<ApiError> refuse_unknown(const std::vector<TokenId>& tokens, std::string_view param,
                                       const Tokenizer& tokenizer);

}  // namespace protean
