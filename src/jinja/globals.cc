#include <algorithm>
#include <array>

#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/print.h"

namespace protean::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // as in jinja2's sandbox

class Global : public Callable {
 public:
  explicit Global(const NamedBuiltin& function) : function_(function) {}
  Value call(Runtime& runtime, Call& arguments) override {
    const Value result = function_.run(runtime, Value(), arguments);
    arguments.finish(function_.name);
    return result;
  }
  std::string_view kind() const override { return "function"; }

 private:
  const NamedBuiltin& function_;
};

// Returns "" the first time and the separator from then on.
class Joiner : public Callable {
 public:
  explicit Joiner(const Value& separator) : separator_(separator) {}
  Value call(Runtime&, Call& arguments) override {
    arguments.finish("a joiner");
    return std::exchange(used_, true) ? separator_ : Value::text("");
  }
  std::string_view kind() const override { return "Joiner"; }

 private:
  const Value separator_;
  bool used_ = false;
};

class Cycler : public Callable {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  Value call(Runtime&, Call&) override { fail("'Cycler' object is not callable"); }
  std::string_view kind() const override { return "Cycler"; }

  Value attribute(Runtime& runtime, std::string_view name) override {
    if (name == "current") return items_[at_];
    if (name == "next") return runtime.make<Step>(*this, true);
    if (name == "reset") return runtime.make<Step>(*this, false);
    return Value::undefined(name);
  }

 private:
  class Step : public Callable {
   public:
    Step(Cycler& cycler, bool forward) : cycler_(cycler), forward_(forward) {}
    Value call(Runtime&, Call& arguments) override {
      arguments.finish("a cycler's method");
      const Value now = cycler_.items_[cycler_.at_];
      cycler_.at_ = forward_ ? (cycler_.at_ + 1) % cycler_.items_.size() : 0;
      return forward_ ? now : Value::none();
    }
    std::string_view kind() const override { return "method"; }

   private:
    Cycler& cycler_;
    const bool forward_;
  };

  const std::vector<Value> items_;
  std::size_t at_ = 0;
};

Value make_joiner(Runtime& runtime, const Value&, Call& call) {
  return runtime.make<Joiner>(call.optional(0, "sep", Value::text(", ")));
}

Value make_cycler(Runtime& runtime, const Value&, Call& call) {
  const auto items = call.rest(0);
  if (items.empty()) fail("a cycler needs at least one item");
  runtime.spend_bytes(items.size() * sizeof(Value));
  return runtime.make<Cycler>(std::vector<Value>(items.begin(), items.end()));
}

Value raise_exception(Runtime& runtime, const Value&, Call& call) {
  fail("{}", text_of(runtime, call.required(0, "message")));
}

Value range(Runtime& runtime, const Value&, Call& call) {
  constexpr std::string_view kWhat = "range() needs integers";
  const auto given = call.rest(0);
  if (given.empty() || given.size() > 3) fail("range takes 1 to 3 arguments");
  std::int64_t start = given.size() == 1 ? 0 : to_index(given[0], kWhat);
  const std::int64_t stop = to_index(given[given.size() == 1 ? 0 : 1], kWhat);
  const std::int64_t step = given.size() == 3 ? to_index(given[2], kWhat) : 1;
  if (step == 0) fail("range() arg 3 must not be zero");
  std::vector<Value> items;
  const std::int64_t first = start;
  while (step > 0 ? start < stop : start > stop) {
    if (static_cast<std::int64_t>(items.size()) >= kMaxRange) {
      fail("range() has more than {} elements", kMaxRange);
    }
    items.push_back(Value::integer(start));
    if (__builtin_add_overflow(start, step, &start)) break;
  }
  const Value made = runtime.sequence(Sequence::Kind::kRange, std::move(items));
  made.as_sequence().start = first;
  made.as_sequence().stop = stop;
  made.as_sequence().step = step;
  return made;
}

// dict(mapping or pairs, name=value ...).
std::vector<Pair> dict_pairs(Runtime& runtime, Call& call) {
  std::vector<Pair> pairs;
  if (const Value* from = call.take(0, "")) {
    if (from->is(Type::kDict)) {
      pairs = from->as_dict().items;
    } else {
      for (const Value& item : elements(runtime, *from)) {
        const auto pair = elements(runtime, item);
        if (pair.size() != 2) fail("dict() needs pairs, found {} elements", pair.size());
        pairs.emplace_back(pair[0], pair[1]);
      }
    }
  }
  for (auto& [name, value] : call.named)
    pairs.emplace_back(Value::text(std::exchange(name, {})), value);
  return pairs;
}

Value make_dict(Runtime& runtime, const Value&, Call& call) {
  return runtime.dict(dict_pairs(runtime, call));
}

Value make_namespace(Runtime& runtime, const Value&, Call& call) {
  auto* made = runtime.make<Namespace>();
  for (const auto& [name, value] : dict_pairs(runtime, call)) {
    if (!name.is_string()) fail("namespace() needs names that are text");
    runtime.spend_bytes(64);
    made->attributes.insert_or_assign(name.as_text(), value);
  }
  return made;
}

Value strftime_now(Runtime& runtime, const Value&, Call& call) {
  const std::string_view format = text_of(runtime, call.required(0, "format"));
  constexpr std::string_view kFlags = "-_0^#";
  constexpr std::string_view kDirectives = "aAbBcdDeFgGhHIjklmMnprRStTuUVwWxXyYC";
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    std::string directive = "%";
    while (i + 1 < format.size() && directive.size() < 3 &&
           kFlags.find(format[i + 1]) != kFlags.npos) {
      directive += format[++i];
    }
    const char letter = i + 1 < format.size() ? format[++i] : '\0';
    if (letter == '%') {
      out += '%';
    } else if (letter == 'z' || letter == 'Z') {
      continue;  // as for Python's local time, which has no zone
    } else if (kDirectives.find(letter) == kDirectives.npos || letter == '\0') {
      refuse("the time format {}{} is not supported", directive, letter);
    } else {
      char text[128];
      directive += letter;
      out.append(text, std::strftime(text, sizeof text, directive.c_str(), runtime.now()));
    }
    runtime.spend_steps(4);
  }
  return runtime.text(std::move(out));
}

constexpr std::array<NamedBuiltin, 7> kGlobals = {{
    {"cycler", make_cycler},
    {"dict", make_dict},
    {"joiner", make_joiner},
    {"namespace", make_namespace},
    {"raise_exception", raise_exception},
    {"range", range},
    {"strftime_now", strftime_now},
}};

}  // namespace

Value find_global(Runtime& runtime, std::string_view name) {
  const auto found = std::find_if(kGlobals.begin(), kGlobals.end(),
                                  [&](const NamedBuiltin& entry) { return entry.name == name; });
  if (found == kGlobals.end() || (found->run == strftime_now && runtime.now() == nullptr)) {
    return Value::undefined(name);
  }
  return runtime.make<Global>(*found);
}

}  // namespace protean::jinja
