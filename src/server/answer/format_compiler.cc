#include "server/answer/format_compiler.h"

#include <fmt/format.h>

namespace protean {

FormatCompiler::FormatCompiler(const Tokenizer& tokenizer, int vocab, std::vector<TokenId> stop_ids,
                               std::size_t grammar_bytes)
    : can_end_(!stop_ids.empty()), tokens_(tokenizer, vocab, std::move(stop_ids), grammar_bytes) {}

bool FormatCompiler::knows(const AnswerFormat& format) const {
  return tokens_.holds(format.key);
}

Checked<std::shared_ptr<TokenConstraint>> FormatCompiler::constrain(const AnswerFormat& format) {
  if (!can_end_) {
    return ApiError{.message = fmt::format("{} is not supported by this model: it has no token "
                                           "that ends an answer",
                                           format.field),
                    .param = format.field};
  }
  auto constraint = tokens_.constrain(format.source, format.key);
  if (!constraint) {
    const bool later = constraint.error().code == ErrorCode::kUnavailable;
    return ApiError{.status = later ? 503 : 400,
                    .message = fmt::format("{}: {}", format.field, constraint.error().message),
                    .param = format.field};
  }
  return *std::move(constraint);
}

}  // namespace protean
