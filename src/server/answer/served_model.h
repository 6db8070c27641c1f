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
#include "cost/pages.h"
#include "http/api_error.h"
#include "server/answer/format_compiler.h"
#include "server/call/generation_call.h"
#include "tokenizer/infill_tokens.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// What a model is, for clients that show it.
struct ModelCard {
  std::string architecture;
  std::string format;  // "safetensors" or "gguf"
  std::int64_t parameters = 0;
  std::int64_t weight_bytes = 0;  // bytes of the form at start
};

// The model as the API sees it. Does not own the tokenizer and chat template, which outlive the
// server.
struct ServedModel {
  std::vector<std::string> names;  // at least one; the first is the default in answers
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;
  ChatFiles chat;  // the template's source, and texts of BOS and EOS for it
  GenerationDefaults defaults;
  int max_model_len = 0;
  int embedding_size = 0;
  ToolFormat tool_format = ToolFormat::kNone;  // how the model writes tool calls
  InfillTokens infill;
  bool special_tokens_in_content = false;      // messages may contain special tokens
  std::shared_ptr<FormatConstraints> formats;  // null: no structured output
  Pooling pooling = Pooling::kMean;            // how embeddings are pooled
  std::function<std::tm()> local_time;  // for strftime_now() in templates; empty: not available
  FormStatus form;                      // the form of each replica at start
  // Returns what the devices' pages hold in a form; empty: not known.
  std::function<std::vector<DevicePages>(const Form&)> pages_by_device;
  TimeNs ttft_target_ns = 0;  // the TTFT that the policy works for; 0: none
  int replicas = 1;
  std::string router;  // the name of the policy that chooses among replicas
  ModelCard card;
  std::int64_t max_text_bytes = 0;  // most_text_bytes(); 0: text of any length is tokenised
};

// Returns the length of the longest text that may fit the model's context. Reads the whole
// vocabulary, so it is called once.
std::int64_t most_text_bytes(const Tokenizer& tokenizer, int max_model_len);

// Returns the tokens that end an answer.
std::vector<TokenId> end_tokens(const Tokenizer& tokenizer, const GenerationDefaults& defaults);

// The engine's request for one choice of an answer, without an id, and what its text begins with.
struct PreparedChoice {
  Request request;
  std::string echo;   // the prompt's text, if the answer repeats it
  std::string begun;  // the beginning of a forced tool call, which is part of the prompt
};

// Applies the chat template, tokenises, compiles the answer's format and fills in the model's
// defaults. Before that, refuses text that is too long to fit. May be called from any thread; a
// long prompt takes long. Draws from `chance` the seeds that the call does not give.
Checked<std::vector<PreparedChoice>> prepare(const GenerationCall& call, const ServedModel& model,
                                             std::uint64_t chance);

// True if prepare() would block the io thread: a long text, or a format to be compiled.
bool takes_long(const GenerationCall& call, const ServedModel& model);
inline constexpr std::int64_t kLongTextBytes = 32 * 1024;

// Refuses a text of so many bytes if it cannot fit the model's context.
std::optional<ApiError> refuse_text(std::int64_t bytes, std::string_view param,
                                    const ServedModel& model);
// Refuses ids beyond the vocabulary.
std::optional<ApiError> refuse_unknown(const std::vector<TokenId>& tokens, std::string_view param,
                                       const Tokenizer& tokenizer);

}  // namespace protean
