#include "jinja/template.h"

#include "jinja/ast.h"
#include "jinja/interpreter.h"
#include "jinja/names_reader.h"
#include "jinja/parser.h"

namespace protean::jinja {
namespace {

Error at_line(const Failure& failure, int line) {
  return make_error(failure.error.code, "line {}: {}", line, failure.error.message);
}

}  // namespace

Result<Template> Template::parse(std::string_view source) {
  try {
    return Template(std::make_shared<Syntax>(parse_template(source)));
  } catch (const Failure& failure) {
    return at_line(failure, failure.line);
  } catch (const std::exception& error) {
    return make_error(ErrorCode::kInternal, "reading the template failed: {}", error.what());
  }
}

Result<MarkedText> Template::render(const Names& names, const Limits& limits) const {
  Runtime runtime(limits, names.now ? &*names.now : nullptr);
  try {
    const Value values = NamesReader(runtime, names).read();
    return Interpreter(*syntax_, values.as_dict(), runtime).render();
  } catch (const Failure& failure) {
    return at_line(failure, failure.line != 0 ? failure.line : runtime.line());
  } catch (const std::exception& error) {
    return make_error(ErrorCode::kInternal, "rendering the template failed: {}", error.what());
  }
}

}  // namespace protean::jinja
