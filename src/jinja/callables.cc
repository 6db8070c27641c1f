#include "jinja/callables.h"

#include <algorithm>

#include "jinja/operators.h"

namespace protean::jinja {
namespace {

class LoopMethod : public Callable {
 public:
  LoopMethod(Loop& loop, bool cycles) : loop_(loop), cycles_(cycles) {}
  Value call(Runtime& runtime, Call& arguments) override {
    return cycles_ ? loop_.cycle(arguments) : loop_.changed(runtime, arguments);
  }
  std::string_view kind() const override { return "method"; }

 private:
  Loop& loop_;
  const bool cycles_;
};

}  // namespace

Value Macro::call(Runtime&, Call& arguments) {
  return interpreter_.call_macro(body_, closure_, arguments);
}

Value Macro::attribute(Runtime& runtime, std::string_view name) {
  if (name == "name") return Value::text(body_.name);
  return Callable::attribute(runtime, name);
}

Value Loop::call(Runtime& runtime, Call& arguments) {
  if (!place_.stmt.recursive) fail("loop() is called, but the loop is not marked 'recursive'");
  const Value items = arguments.required(0, "");
  arguments.finish("loop");
  return runtime.text(interpreter_.render_again(place_, items));
}

Value Loop::attribute(Runtime& runtime, std::string_view name) {
  const auto index = static_cast<std::int64_t>(index_);
  const auto size = static_cast<std::int64_t>(items_.size());
  const std::pair<std::string_view, std::int64_t> numbers[] = {
      {"index", index + 1},       {"index0", index},           {"length", size},
      {"revindex", size - index}, {"depth", place_.depth + 1}, {"revindex0", size - index - 1},
      {"depth0", place_.depth}};
  for (const auto& [number_name, number] : numbers) {
    if (number_name == name) return Value::integer(number);
  }
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == size);
  if (name == "previtem") {
    return index == 0 ? Value::undefined("the item before the first") : items_[index_ - 1];
  }
  if (name == "nextitem") {
    return index + 1 == size ? Value::undefined("the item behind the last") : items_[index_ + 1];
  }
  if (name == "cycle" || name == "changed") {
    return runtime.make<LoopMethod>(*this, name == "cycle");
  }
  return Value::undefined(name);
}

Value Loop::cycle(Call& arguments) const {
  const auto items = arguments.rest(0);
  arguments.finish("loop.cycle");
  if (items.empty()) fail("no items for cycling given");
  return items[index_ % items.size()];
}

Value Loop::changed(Runtime& runtime, Call& arguments) {
  const auto now = arguments.rest(0);
  arguments.finish("loop.changed");
  const bool same =
      has_last_ && std::equal(now.begin(), now.end(), last_.begin(), last_.end(),
                              [&](const Value& a, const Value& b) { return equal(runtime, a, b); });
  has_last_ = true;
  last_.assign(now.begin(), now.end());
  return Value::boolean(!same);
}

}  // namespace protean::jinja
