#include "jinja/template.h"

#include "jinja/ast.h"
#include "jinja/interpreter.h"
#include "jinja/json_values.h"
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

Result<std::string> Template::render(const Names& names, const Limits& limits) const {
  Runtime runtime(limits, names.now ? &*names.now : nullptr);
  try {
    std::vector<Pair> values;
    for (const auto& [name, value] : names.values) {
      values.emplace_back(Value::text({name.data(), name.size()}), from_json(runtime, value));
    }
    return Interpreter(*syntax_, runtime.dict(std::move(values)).as_dict(), runtime).render();
  } catch (const Failure& failure) {
    return at_line(failure, failure.line != 0 ? failure.line : runtime.line());
  } catch (const std::exception& error) {
    return make_error(ErrorCode::kInternal, "rendering the template failed: {}", error.what());
  }
}

}  // namespace protean::jinja
