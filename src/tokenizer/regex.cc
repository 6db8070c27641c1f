#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/regex.h"

#include <pcre2.h>

#include <array>
#include <string>

#include "tokenizer/utf8.h"

namespace protean {
namespace {

constexpr std::size_t kLongestPattern = 64 * 1024;

constexpr std::uint32_t kHeapLimitKib = 64 * 1024;

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Regex::Compiled {
  std::string pattern;
  std::unique_ptr<pcre2_code, Free> code;
  std::unique_ptr<pcre2_match_context, Free> context;
};

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kLongestPattern) {
    return make_error(ErrorCode::kUnsupported, "a pattern of {} bytes is too long (at most {})",
                      pattern.size(), kLongestPattern);
  }
  // PCRE2 10.42 would read a class intersection as plain characters and split text wrongly.
  if (pattern.find("&&[") != std::string_view::npos) {
    return make_error(ErrorCode::kUnsupported, "class intersection (&&) in pattern '{}'", pattern);
  }
  int code = 0;
  PCRE2_SIZE at = 0;
  // Oniguruma, for which these patterns are written, anchors ^ and $ at every line.
  constexpr std::uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                       kOptions, &code, &at, nullptr);
  if (compiled == nullptr) {
    return make_error(ErrorCode::kUnsupported, "pattern '{}' does not compile at byte {}: {}",
                      pattern, at, message_of(code));
  }
  // Without a JIT, matching falls back to the interpreter.
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
  Compiled state{std::string(pattern), std::unique_ptr<pcre2_code, Free>(compiled),
                 std::unique_ptr<pcre2_match_context, Free>(pcre2_match_context_create(nullptr))};
  pcre2_set_heap_limit(state.context.get(), kHeapLimitKib);
  return Regex(std::make_shared<const Compiled>(std::move(state)));
}

bool operator==(const Regex& one, const Regex& other) {
  return one.compiled_->pattern == other.compiled_->pattern;
}

Result<Regex> Regex::literal(std::string_view text) {
  std::string pattern = "\\Q";
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t quote_end = text.find("\\E", from);
    pattern += text.substr(from, quote_end - from);
    if (quote_end == std::string_view::npos) {
      break;
    }
    pattern += "\\E\\\\E\\Q";
    from = quote_end + 2;
  }
  return compile(pattern + "\\E");
}

void Regex::find_all(std::string_view text, std::vector<Match>& matches) const {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t valid = utf8_valid_prefix(text.substr(at));
    if (valid > 0) {
      find_in_valid(text.substr(at, valid), at, matches);
      at += valid;
    }
    if (at < text.size()) {
      at += utf8_step(text.substr(at)).bytes;
    }
  }
}

void Regex::find_in_valid(std::string_view text, std::size_t offset,
                          std::vector<Match>& matches) const {
  const std::unique_ptr<pcre2_match_data, Free> data(pcre2_match_data_create(1, nullptr));
  std::size_t from = 0;
  std::size_t last_end = 0;
  bool any = false;
  std::uint32_t options = PCRE2_NO_UTF_CHECK;
  while (from <= text.size()) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int found = pcre2_match(compiled_->code.get(), subject, text.size(), from, options,
                                  data.get(), compiled_->context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      options |= PCRE2_NO_JIT;  // the interpreter keeps its stack on the heap
      continue;
    }
    if (found < 0) {
      return;
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    const std::size_t begin = range[0];
    const std::size_t end = range[1];
    if (begin < from || end < begin) {
      return;
    }
    // An empty match directly after the previous match does not count, as in other engines.
    if (end > begin || !any || begin > last_end) {
      matches.push_back({offset + begin, offset + end});
      any = true;
      last_end = end;
    }
    from = end;
    if (end == begin) {
      if (end == text.size()) {
        return;
      }
      from += utf8_step(text.substr(end)).bytes;
    }
  }
}

}  // namespace protean
