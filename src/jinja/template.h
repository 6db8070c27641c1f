#pragma once

#include <boost/json/object.hpp>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "jinja/limits.h"

namespace protean::jinja {

struct Syntax;

// What a template may refer to by name.
struct Names {
  boost::json::object values;
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
  Result<std::string> render(const Names& names, const Limits& limits = {}) const;

 private:
  explicit Template(std::shared_ptr<const Syntax> syntax) : syntax_(std::move(syntax)) {}
  std::shared_ptr<const Syntax> syntax_;
};

}  // namespace protean::jinja
