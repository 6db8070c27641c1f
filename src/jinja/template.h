#pragma once

#include <boost/json/object.hpp>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "jinja/limits.h"
#include "jinja/marked_text.h"

namespace protean::jinja {

struct Syntax;

// What a template may refer to by name.
struct Names {
  boost::json::object values;
  // True for texts in `values` that count as written by the template, such as a BOS token. `path`
  // is the members that lead to the text, without the indices of arrays. Empty: there are none.
  std::function<bool(std::span<const std::string_view> path, std::string_view text)> is_own;
  // Local time, as std::localtime gives it, for strftime_now(). Without it the template has no such
  // function.
  std::optional<std::tm> now;
};

// A compiled Jinja2 template, set up as Hugging Face does: sandboxed, immutable, trim_blocks,
// lstrip_blocks, loop controls, its tojson. Anything it does not implement, such as include or
// integers beyond 64 bits, is refused by name (kUnsupported). Immutable: any thread may render,
// with 1 MiB of free stack.
class Template {
 public:
  // An error begins with the line in the source: "line 3: unknown tag 'nope'".
  static Result<Template> parse(std::string_view source);

  // Fails with the template's own text if it calls raise_exception(), and with kExhausted beyond
  // the limits.
  //
  // The result says which bytes the template wrote itself: its text, its string literals and the
  // values for which names.is_own() holds. Pieces of such text, concatenations, replacements,
  // formatting and the results of macros and blocks keep exact ranges. Text of which a filter makes
  // something else (upper, tojson, urlencode, ...) counts as the template's only if all of it was.
  // So no byte that comes from a name's value is ever within a range, whatever the template does.
  Result<MarkedText> render(const Names& names, const Limits& limits = {}) const;

 private:
  explicit Template(std::shared_ptr<const Syntax> syntax) : syntax_(std::move(syntax)) {}
  std::shared_ptr<const Syntax> syntax_;
};

}  // namespace protean::jinja
