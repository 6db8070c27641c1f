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

// The variables of a template.
struct Names {
  boost::json::object values;
  // Returns true for texts in `values` that count as written by the template, such as a BOS token.
  // `path` has the names of the members around the text, outermost first. May be empty.
  std::function<bool(std::span<const std::string_view> path, std::string_view text)> is_own;
  // Local time, as std::localtime() returns it. Without it there is no strftime_now().
  std::optional<std::tm> now;
};

// A compiled Jinja2 template with the settings of Hugging Face: sandboxed, immutable, trim_blocks,
// lstrip_blocks, loop controls, tojson without HTML escapes. Refuses by name (kUnsupported)
// whatever is not implemented, such as include or integers beyond 64 bits. Immutable: any thread
// may render if it has 1 MiB of free stack.
class Template {
 public:
  // An error begins with the line in the source: "line 3: unknown tag 'nope'".
  static Result<Template> parse(std::string_view source);

  // Fails with the template's own text if it calls raise_exception(), and with kExhausted if a
  // limit is reached.
  //
  // The result has the ranges that the template wrote: its text, its string literals and the values
  // for which names.is_own() holds. Trimming, cutting, joining, replacing, formatting, macros and
  // blocks keep exact ranges. Text that a filter or method converts (upper, tojson, urlencode, ...)
  // counts as given unless all of it was the template's. So no byte of another value is ever within
  // a range, whatever the template does with it.
  Result<MarkedText> render(const Names& names, const Limits& limits = {}) const;

 private:
  explicit Template(std::shared_ptr<const Syntax> syntax) : syntax_(std::move(syntax)) {}
  std::shared_ptr<const Syntax> syntax_;
};

}  // namespace protean::jinja
