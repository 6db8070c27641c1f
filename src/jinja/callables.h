#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "jinja/interpreter.h"

namespace protean::jinja {

class Macro : public Callable {
 public:
  Macro(Interpreter& interpreter, const MacroBody& body, Scope& closure)
      : interpreter_(interpreter), body_(body), closure_(closure) {}

  Value call(Runtime& runtime, Call& arguments) override;
  Value attribute(Runtime& runtime, std::string_view name) override;
  std::string_view kind() const override { return "macro"; }

 private:
  Interpreter& interpreter_;
  const MacroBody& body_;
  Scope& closure_;
};

// The variable `loop` of one for statement. Callable if the statement is recursive.
class Loop : public Callable {
 public:
  Loop(Interpreter& interpreter, const Interpreter::LoopPlace& place, std::span<const Value> items)
      : interpreter_(interpreter), place_(place), items_(items) {}

  void go_to(std::size_t index) { index_ = index; }

  Value call(Runtime& runtime, Call& arguments) override;
  Value attribute(Runtime& runtime, std::string_view name) override;
  std::string_view kind() const override { return "loop"; }

  Value cycle(Call& arguments) const;
  Value changed(Runtime& runtime, Call& arguments);

 private:
  Interpreter& interpreter_;
  const Interpreter::LoopPlace place_;
  const std::span<const Value> items_;
  std::size_t index_ = 0;
  bool has_last_ = false;
  std::vector<Value> last_;  // arguments of the latest changed()
};

}  // namespace protean::jinja
