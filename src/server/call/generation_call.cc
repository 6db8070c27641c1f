#include "server/call/generation_call.h"

namespace protean {

std::int64_t GenerationCall::choices() const {
  const CompletionInput* completion = std::get_if<CompletionInput>(&input);
  return n * (completion == nullptr ? 1 : std::ssize(completion->prompts));
}

}  // namespace protean
