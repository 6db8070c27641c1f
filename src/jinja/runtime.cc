#include "jinja/runtime.h"

#include <algorithm>

namespace protean::jinja {
namespace {

constexpr std::size_t kObjectBytes = 32;  // what the allocator and the lists here add to an object

[[noreturn]] void exhausted(std::string_view what) {
  throw Failure{make_error(ErrorCode::kExhausted,
                           "{}; the template loops or grows without need, or the messages are far "
                           "too long",
                           what)};
}

}  // namespace

void Runtime::spend_steps(std::size_t steps) {
  if (steps > limits_.steps - steps_) exhausted("rendering takes too many steps");
  steps_ += steps;
}

void Runtime::spend_bytes(std::size_t bytes) {
  if (bytes > limits_.value_bytes - bytes_) exhausted("rendering takes too much memory");
  bytes_ += bytes;
  spend_steps(bytes / 64);
}

void Runtime::check_output(std::size_t bytes) const {
  if (bytes > limits_.output_bytes) exhausted("the rendered text is too long");
}

Value Runtime::text(std::string text, bool markup) {
  spend_bytes(text.size() + kObjectBytes);
  return Value::text(texts_.emplace_back(std::move(text)), markup);
}

Value Runtime::sequence(Sequence::Kind kind, std::vector<Value> items) {
  spend_bytes(items.size() * sizeof(Value) + kObjectBytes);
  auto* made = make<Sequence>();
  made->kind = kind;
  made->items = std::move(items);
  return made;
}

Value Runtime::dict(std::vector<Pair> items) {
  spend_bytes(items.size() * (sizeof(Pair) + 4) + kObjectBytes);
  for (const Pair& item : items) {
    if (!can_be_key(item.first)) fail("unhashable type: '{}'", type_name(item.first));
  }
  std::vector<std::uint32_t> order(items.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return compare_keys(items[a].first, items[b].first) < 0;
  });
  std::vector<bool> again(items.size());
  bool repeated = false;
  for (std::size_t i = 0, first = 0; i < order.size(); ++i) {
    if (i > 0 && compare_keys(items[order[first]].first, items[order[i]].first) == 0) {
      items[order[first]].second = items[order[i]].second;
      again[order[i]] = repeated = true;
    } else {
      first = i;
    }
  }
  if (repeated) {
    std::vector<Pair> unique;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!again[i]) unique.push_back(items[i]);
    }
    return dict(std::move(unique));
  }
  auto* made = make<Dict>();
  made->items = std::move(items);
  made->by_key = std::move(order);
  return made;
}

Deeper::Deeper(Runtime& runtime) : runtime_(runtime) {
  if (runtime.depth_ >= runtime.limits_.depth) {
    throw Failure{make_error(ErrorCode::kExhausted, "nested too deeply (a macro without an end?)")};
  }
  ++runtime.depth_;
}

}  // namespace protean::jinja
