#include "server/answer/infill_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace protean {
namespace {

using Tokens = std::vector<TokenId>;

constexpr std::int64_t kTokensForAnswer = 256;  // kept free if the call does not say how many

Tokens plain_tokens(const std::string& text, const ServedModel& model) {
  return model.tokenizer->encode(text, kPlainText);
}

void add_tokens(Tokens& to, const Tokens& tokens) {
  to.insert(to.end(), tokens.begin(), tokens.end());
}

// Returns the tokens of a file of the context, with its name if the model has a token for that.
Tokens chunk_tokens(const InfillChunk& chunk, const ServedModel& model) {
  Tokens tokens;
  if (model.infill.file >= 0) {
    tokens.push_back(model.infill.file);
    add_tokens(tokens, plain_tokens(chunk.filename + "\n" + chunk.text, model));
  } else {
    tokens = plain_tokens(chunk.text, model);
  }
  return tokens;
}

// Cuts prefix and suffix to `room` tokens in all: a quarter is the suffix's if the prefix needs the
// rest.
void cut(Tokens& prefix, Tokens& suffix, std::int64_t room) {
  const std::int64_t for_suffix =
      std::min(std::ssize(suffix), std::max(room / 4, room - std::ssize(prefix)));
  const std::int64_t for_prefix = std::min(std::ssize(prefix), room - for_suffix);
  suffix.resize(static_cast<std::size_t>(for_suffix));
  prefix.erase(prefix.begin(), prefix.end() - for_prefix);
}

// Returns the files that fit into `room` tokens, the last ones first, in their order.
Tokens context_tokens(const std::vector<InfillChunk>& chunks, const ServedModel& model,
                      std::int64_t room) {
  Tokens context;
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
    Tokens tokens = chunk_tokens(*chunk, model);
    if (std::ssize(context) + std::ssize(tokens) > room) {
      break;
    }
    add_tokens(tokens, context);
    context = std::move(tokens);
  }
  return context;
}

}  // namespace

Checked<Tokens> infill_prompt(const InfillInput& input, const GenerationCall& call,
                              const ServedModel& model) {
  const InfillTokens& special = model.infill;
  if (!special.complete()) {
    return ApiError{.message = fmt::format("{} is not supported by this model: its vocabulary has "
                                           "no tokens for filling in the middle of a text",
                                           input.field),
                    .param = input.field};
  }
  Tokens prompt = model.tokenizer->encode("", {.add_special = true});
  if (prompt.empty() || prompt.front() != model.tokenizer->bos()) {
    prompt.clear();
  } else {
    prompt.resize(1);  // without a token for the end
  }
  Tokens prefix = plain_tokens(input.prefix, model);
  Tokens suffix = plain_tokens(input.suffix, model);
  const Tokens middle = plain_tokens(input.middle, model);
  constexpr std::int64_t kMarks = 3;
  const std::int64_t answer = std::min(call.max_tokens.value_or(kTokensForAnswer),
                                       std::max<std::int64_t>(model.max_model_len / 2, 1));
  const std::int64_t room =
      model.max_model_len - answer - std::ssize(prompt) - std::ssize(middle) - kMarks;
  cut(prefix, suffix, std::max<std::int64_t>(room, 0));
  add_tokens(prompt,
             context_tokens(input.extra, model, room - std::ssize(prefix) - std::ssize(suffix)));
  prompt.push_back(special.prefix);
  add_tokens(prompt, prefix);
  prompt.push_back(special.suffix);
  add_tokens(prompt, suffix);
  prompt.push_back(special.middle);
  add_tokens(prompt, middle);
  return prompt;
}

Tokens infill_end_tokens(const InfillTokens& tokens) {
  Tokens ends;
  for (const TokenId token : {tokens.pad, tokens.repository, tokens.file}) {
    if (token >= 0) {
      ends.push_back(token);
    }
  }
  return ends;
}

}  // namespace protean
