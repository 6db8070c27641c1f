#include "jinja/runtime.h"

#include <algorithm>

#include "base/check.h"

namespace protean::jinja {
namespace {

constexpr std::size_t kObjectBytes = 32;  // overhead of an object in the allocator and our lists

[[noreturn]] void exhausted(std::string_view what) {
  throw Failure{make_error(ErrorCode::kExhausted,
                           "{}: the template repeats too much, or the messages are too long",
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

Value Runtime::text(MarkedText text, bool markup) {
  const auto& ranges = text.from_template;
  if (ranges.empty()) return this->text(std::move(text.text), markup);
  const bool whole = ranges.front() == TextRange{0, text.text.size()};
  if (!whole) spend_bytes(ranges.size() * sizeof(TextRange) + kObjectBytes);
  const std::string_view kept = this->text(std::move(text.text)).as_text();
  if (!whole) mixed_.emplace(kept.data(), std::move(text.from_template));
  return Value::text(kept, markup, whole ? Origin::kTemplate : Origin::kMixed);
}

Value Runtime::text_from(const Value& from, std::string text) {
  const bool own = from.origin() == Origin::kTemplate;
  return Value::text(this->text(std::move(text)).as_text(), from.is_markup(),
                     own ? Origin::kTemplate : Origin::kGiven);
}

void Runtime::append(MarkedText& out, const Value& text) {
  const std::string_view bytes = text.as_text();
  if (text.origin() == Origin::kTemplate) return out.append_from_template(bytes);
  if (text.origin() == Origin::kGiven || bytes.empty()) {
    out.text += bytes;
    return;
  }
  const auto after = mixed_.upper_bound(bytes.data());
  check(after != mixed_.begin(), "a piece of mixed text lies within one");
  const auto& [begin, ranges] = *std::prev(after);
  const auto from = static_cast<std::size_t>(bytes.data() - begin), to = from + bytes.size();
  auto range = std::upper_bound(ranges.begin(), ranges.end(), from,
                                [](std::size_t at, const TextRange& r) { return at < r.end; });
  std::size_t at = from;
  for (; range != ranges.end() && range->begin < to; ++range) {
    const std::size_t first = std::max(range->begin, from), last = std::min(range->end, to);
    out.text += bytes.substr(at - from, first - at);
    out.append_from_template(bytes.substr(first - from, last - first));
    at = last;
    spend_steps(1);
  }
  out.text += bytes.substr(at - from);
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
    throw Failure{
        make_error(ErrorCode::kExhausted,
                   "evaluation is nested too deeply: a macro may call itself without end")};
  }
  ++runtime.depth_;
}

}  // namespace protean::jinja
