#include "server/call/named_model.h"

#include <algorithm>
#include <boost/json/parse.hpp>

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::string_view kWhiteSpace = " \t\r\n";
constexpr auto kEnd = std::string_view::npos;

// Walks over a JSON text.
class Walk {
 public:
  explicit Walk(std::string_view text) : rest_(text) {}

  // Skips white space. Returns the next character without taking it; 0 at the end.
  char peek() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(kWhiteSpace), rest_.size()));
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(char wanted) {
    const bool found = peek() == wanted;
    rest_.remove_prefix(found ? 1 : 0);
    return found;
  }
  // Takes a string with its quotes; empty if none is next.
  std::string_view string() {
    if (peek() != '"') {
      return {};
    }
    std::size_t at = rest_.find('"', 1);
    while (at != kEnd && is_escaped(at)) {
      at = rest_.find('"', at + 1);
    }
    const std::string_view taken = at == kEnd ? std::string_view() : rest_.substr(0, at + 1);
    rest_.remove_prefix(at == kEnd ? rest_.size() : taken.size());
    return taken;
  }
  // Skips a value of any kind, up to the comma or bracket after it.
  void skip_value() {
    int depth = 0;
    for (std::size_t at = 0; at < rest_.size();) {
      const char c = rest_[at];
      if (c == '"') {
        rest_.remove_prefix(at);
        string();
        at = 0;
        continue;
      }
      const bool closes = c == ']' || c == '}';
      if (depth == 0 && (closes || c == ',')) {
        rest_.remove_prefix(at);
        return;
      }
      depth += c == '[' || c == '{' ? 1 : closes ? -1 : 0;
      ++at;
    }
    rest_ = {};
  }

 private:
  // True if an odd number of backslashes is before a place within a string.
  bool is_escaped(std::size_t at) const {
    const std::size_t first = rest_.find_last_not_of('\\', at - 1) + 1;
    return (at - first) % 2 == 1;
  }

  std::string_view rest_;
};

// Returns what a string with its quotes says; nothing if it is malformed.
std::optional<std::string> unquoted(std::string_view quoted) {
  if (quoted.size() < 2) {
    return std::nullopt;
  }
  if (quoted.find('\\') == kEnd) {
    return std::string(quoted.substr(1, quoted.size() - 2));
  }
  json::error_code ec;
  const json::value parsed = json::parse(json::string_view(quoted.data(), quoted.size()), ec);
  return ec ? std::nullopt : std::optional(std::string(parsed.get_string()));
}

}  // namespace

std::optional<std::string> text_field(std::string_view body, std::string_view key) {
  Walk walk(body);
  if (!walk.take('{')) {
    return std::nullopt;
  }
  do {
    const std::optional<std::string> name = unquoted(walk.string());
    if (!name || !walk.take(':')) {
      return std::nullopt;
    }
    if (*name == key) {
      return unquoted(walk.string());
    }
    walk.skip_value();
  } while (walk.take(','));
  return std::nullopt;
}

}  // namespace protean
