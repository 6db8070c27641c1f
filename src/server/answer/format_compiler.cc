#include "server/answer/format_compiler.h"

#include <fmt/format.h>

namespace protean {
namespace {

constexpr std::size_t kMostKept = 256;
constexpr std::size_t kMostKeyBytes = 8U << 20;

}  // namespace

FormatCompiler::FormatCompiler(const Tokenizer& tokenizer, int vocab, std::vector<TokenId> stop_ids)
    : can_end_(!stop_ids.empty()), tokens_(tokenizer, vocab, std::move(stop_ids)) {}

bool FormatCompiler::knows(const AnswerFormat& format) const {
  const std::lock_guard lock(mutex_);
  return by_key_.find(format.key) != by_key_.end();
}

FormatCompiler::Compiled FormatCompiler::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) {
    return nullptr;
  }
  recent_.splice(recent_.begin(), recent_, found->second);
  return found->second->second;
}

void FormatCompiler::keep(const std::string& key, Compiled grammar) {
  const std::lock_guard lock(mutex_);
  if (by_key_.find(key) != by_key_.end()) {
    return;  // another thread compiled it concurrently
  }
  recent_.emplace_front(key, std::move(grammar));
  by_key_.emplace(recent_.front().first, recent_.begin());
  key_bytes_ += key.size();
  while (recent_.size() > 1 && (recent_.size() > kMostKept || key_bytes_ > kMostKeyBytes)) {
    key_bytes_ -= recent_.back().first.size();
    by_key_.erase(recent_.back().first);
    recent_.pop_back();
  }
}

Checked<std::shared_ptr<TokenConstraint>> FormatCompiler::constrain(const AnswerFormat& format) {
  if (!can_end_) {
    return ApiError{.message = fmt::format("{} is not supported by this model: it has no token "
                                           "that ends an answer",
                                           format.field),
                    .param = format.field};
  }
  Compiled grammar = find(format.key);
  if (grammar == nullptr) {
    auto compiled = Grammar::compile(format.source);
    if (compiled.ok()) {
      compiled = tokens_.prepare(*std::move(compiled));
    }
    if (!compiled.ok()) {
      return ApiError{.message = fmt::format("{}: {}", format.field, compiled.error().message),
                      .param = format.field};
    }
    grammar = *std::move(compiled);
    keep(format.key, grammar);
  }
  return tokens_.constrain(std::move(grammar));
}

}  // namespace protean
