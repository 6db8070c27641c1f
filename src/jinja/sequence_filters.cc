#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/text_search.h"
#include "jinja/unicode.h"

namespace protean::jinja {
namespace {

using Kind = Sequence::Kind;

Value count(Runtime& runtime, const Value& self, Call&) {
  return Value::integer(static_cast<std::int64_t>(length(runtime, self)));
}

Value first(Runtime& runtime, const Value& self, Call&) {
  if (self.is(Type::kSequence) && self.as_sequence().kind == Kind::kGenerator) {
    Sequence& sequence = self.as_sequence();
    if (sequence.consumed < sequence.items.size()) return sequence.items[sequence.consumed++];
  }
  const auto items = elements(runtime, self);
  return items.empty() ? Value::undefined("the first item of an empty sequence") : items.front();
}

Value last(Runtime& runtime, const Value& self, Call&) {
  if (self.is(Type::kSequence) && self.as_sequence().kind == Kind::kGenerator) {
    fail("'generator' object is not reversible");
  }
  const auto items = elements(runtime, self);
  return items.empty() ? Value::undefined("the last item of an empty sequence") : items.back();
}

Value to_list(Runtime& runtime, const Value& self, Call&) {
  const auto items = elements(runtime, self);
  return runtime.list({items.begin(), items.end()});
}

Value reverse(Runtime& runtime, const Value& self, Call&) {
  if (self.is_string()) {
    return slice(runtime, self, {Value::none(), Value::none(), Value::integer(-1)});
  }
  const auto items = elements(runtime, self);
  // As in jinja2, the result is a list for a generator and an iterator otherwise.
  const bool copies = self.is(Type::kSequence) && self.as_sequence().kind == Kind::kGenerator;
  return runtime.sequence(copies ? Kind::kList : Kind::kGenerator, {items.rbegin(), items.rend()});
}

// The filter "items": pairs of a mapping, none for an undefined value.
Value items(Runtime& runtime, const Value& self, Call&) {
  std::vector<Value> pairs;
  if (self.is(Type::kDict)) {
    for (const Pair& item : self.as_dict().items) {
      pairs.push_back(runtime.tuple({item.first, item.second}));
    }
  } else if (!self.is_undefined()) {
    fail("can only get item pairs from a mapping, not {}", type_name(self));
  }
  return runtime.sequence(Kind::kGenerator, std::move(pairs));
}

struct Keyed {
  std::vector<Value> keys;  // compared in this order
  Value item;
};

bool comes_before(Runtime& runtime, const std::vector<Value>& a, const std::vector<Value>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!equal(runtime, a[i], b[i])) return order(runtime, a[i], b[i], "<") < 0;
  }
  return false;
}

Value sorted(Runtime& runtime, std::vector<Keyed> keyed, bool descending) {
  // As in Python, equal items keep their order in both directions.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return descending ? comes_before(runtime, b.keys, a.keys)
                      : comes_before(runtime, a.keys, b.keys);
  });
  std::vector<Value> result;
  for (const Keyed& entry : keyed) result.push_back(entry.item);
  return runtime.list(std::move(result));
}

Value sort(Runtime& runtime, const Value& self, Call& call) {
  const bool descending = truthy(call.optional(0, "reverse", Value::boolean(false)));
  const bool exact = truthy(call.optional(1, "case_sensitive", Value::boolean(false)));
  const Value attribute = call.optional(2, "attribute", Value::none());
  std::vector<Value> paths = {attribute};
  if (attribute.is_string()) {
    paths.clear();
    for (const auto part : split_at(attribute.as_text(), ",", INT64_MAX)) {
      paths.push_back(Value::text(part));
    }
  }
  std::vector<Keyed> keyed;
  for (const Value& item : elements(runtime, self)) {
    std::vector<Value> keys;
    runtime.spend_bytes(paths.size() * sizeof(Value));
    for (const Value& path : paths) {
      keys.push_back(comparison_key(runtime, at_path(runtime, item, path), exact));
    }
    keyed.push_back({std::move(keys), item});
  }
  return sorted(runtime, std::move(keyed), descending);
}

Value dictsort(Runtime& runtime, const Value& self, Call& call) {
  const bool exact = truthy(call.optional(0, "case_sensitive", Value::boolean(false)));
  const std::string_view by = text_of(runtime, call.optional(1, "by", Value::text("key")));
  const bool descending = truthy(call.optional(2, "reverse", Value::boolean(false)));
  if (by != "key" && by != "value") fail("dictsort can sort by 'key' or 'value' only");
  if (self.is_undefined()) fail_undefined(self);
  if (!self.is(Type::kDict)) fail("dictsort needs a mapping, not {}", type_name(self));
  std::vector<Keyed> keyed;
  for (const Pair& item : self.as_dict().items) {
    const Value key = comparison_key(runtime, by == "key" ? item.first : item.second, exact);
    keyed.push_back({{key}, runtime.tuple({item.first, item.second})});
  }
  return sorted(runtime, std::move(keyed), descending);
}

Value unique(Runtime& runtime, const Value& self, Call& call) {
  const bool exact = truthy(call.optional(0, "case_sensitive", Value::boolean(false)));
  const Value path = call.optional(1, "attribute", Value::none());
  const auto before = [](const Value& a, const Value& b) { return compare_keys(a, b) < 0; };
  std::set<Value, decltype(before)> seen(before);
  std::vector<Value> kept;
  for (const Value& item : elements(runtime, self)) {
    const Value key = comparison_key(runtime, at_path(runtime, item, path), exact);
    if (!can_be_key(key)) fail("unhashable type: '{}'", type_name(key));
    runtime.spend_bytes(2 * sizeof(Value));
    if (seen.insert(key).second) kept.push_back(item);
  }
  return runtime.sequence(Kind::kGenerator, std::move(kept));
}

// Returns a tuple for each key, in order: the key of its first item, and its items.
Value groupby(Runtime& runtime, const Value& self, Call& call) {
  const Value path = call.required(0, "attribute");
  const Value otherwise = call.optional(1, "default", Value::none());
  const bool exact = truthy(call.optional(2, "case_sensitive", Value::boolean(false)));
  std::vector<Keyed> keyed;
  for (const Value& item : elements(runtime, self)) {
    const Value found = at_path(runtime, item, path, otherwise);
    runtime.spend_bytes(3 * sizeof(Value));
    keyed.push_back({{comparison_key(runtime, found, exact), found}, item});
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return comes_before(runtime, {a.keys[0]}, {b.keys[0]});
  });
  std::vector<Value> groups;
  for (std::size_t at = 0; at < keyed.size();) {
    const std::size_t first = at;
    std::vector<Value> items;
    while (at < keyed.size() && equal(runtime, keyed[at].keys[0], keyed[first].keys[0])) {
      items.push_back(keyed[at++].item);
    }
    const Value group = runtime.tuple({keyed[first].keys[1], runtime.list(std::move(items))});
    group.as_sequence().group = true;
    groups.push_back(group);
  }
  return runtime.list(std::move(groups));
}

template <bool kLargest>
Value extreme(Runtime& runtime, const Value& self, Call& call) {
  const bool exact = truthy(call.optional(0, "case_sensitive", Value::boolean(false)));
  const Value path = call.optional(1, "attribute", Value::none());
  Value best = Value::undefined("the smallest or largest of an empty sequence"), best_key;
  bool found = false;
  for (const Value& item : elements(runtime, self)) {
    const Value key = comparison_key(runtime, at_path(runtime, item, path), exact);
    const bool better = found && (kLargest ? order(runtime, key, best_key, ">") > 0
                                           : order(runtime, key, best_key, "<") < 0);
    if (!found || better) {
      best = item;
      best_key = key;
      found = true;
    }
  }
  return best;
}

Value sum(Runtime& runtime, const Value& self, Call& call) {
  const Value path = call.optional(0, "attribute", Value::none());
  Value total = call.optional(1, "start", Value::integer(0));
  if (total.is_string()) fail("sum() can't sum strings; use the join filter");
  for (const Value& item : elements(runtime, self)) {
    total = arithmetic(runtime, Operator::kAdd, total, at_path(runtime, item, path));
  }
  return total;
}

Value batch(Runtime& runtime, const Value& self, Call& call) {
  const std::int64_t size = to_index(call.required(0, "linecount"), "linecount");
  const Value fill = call.optional(1, "fill_with", Value::none());
  std::vector<Value> rows, row;
  for (const Value& item : elements(runtime, self)) {
    if (static_cast<std::int64_t>(row.size()) == size) {
      rows.push_back(runtime.list(std::exchange(row, {})));
    }
    row.push_back(item);
  }
  if (!row.empty()) {
    if (!fill.is_none() && size > static_cast<std::int64_t>(row.size())) {
      runtime.check_output(static_cast<std::size_t>(size));
      row.resize(static_cast<std::size_t>(size), fill);
    }
    rows.push_back(runtime.list(std::move(row)));
  }
  return runtime.sequence(Kind::kGenerator, std::move(rows));
}

Value cut(Runtime& runtime, const Value& self, Call& call) {
  const std::int64_t slices = to_index(call.required(0, "slices"), "slices");
  const Value fill = call.optional(1, "fill_with", Value::none());
  const auto all = elements(runtime, self);
  if (slices == 0) fail("integer division or modulo by zero");
  if (slices < 0) return runtime.sequence(Kind::kGenerator, {});
  const auto parts = static_cast<std::size_t>(slices);
  runtime.spend_steps(parts);
  const std::size_t each = all.size() / parts, longer = all.size() % parts;
  std::vector<Value> rows;
  for (std::size_t i = 0, at = 0; i < parts; ++i) {
    const auto row = all.subspan(at, each + (i < longer ? 1 : 0));
    at += row.size();
    std::vector<Value> items(row.begin(), row.end());
    if (!fill.is_none() && i >= longer) items.push_back(fill);
    rows.push_back(runtime.list(std::move(items)));
  }
  return runtime.sequence(Kind::kGenerator, std::move(rows));
}

constexpr std::array<NamedBuiltin, 16> kSequenceFilters = {{
    {"batch", batch},
    {"count", count},
    {"dictsort", dictsort},
    {"first", first},
    {"groupby", groupby},
    {"items", items},
    {"last", last},
    {"length", count},
    {"list", to_list},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reverse", reverse},
    {"slice", cut},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
}};

}  // namespace

std::span<const NamedBuiltin> sequence_filters() {
  return kSequenceFilters;
}

Value comparison_key(Runtime& runtime, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  runtime.spend_steps(value.as_text().size() / 4);
  return runtime.text(to_lower(value.as_text()));
}

Value at_path(Runtime& runtime, Value item, const Value& path, const Value& otherwise) {
  if (path.is_none()) return item;
  if (!path.is_string()) {
    const Value found = get_item(runtime, item, path);
    return found.is_undefined() && !otherwise.is_none() ? otherwise : found;
  }
  for (const std::string_view part : split_at(path.as_text(), ".", INT64_MAX)) {
    std::int64_t index = 0;
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    if (digits) std::from_chars(part.data(), part.data() + part.size(), index);
    item = get_item(runtime, item, digits ? Value::integer(index) : Value::text(part));
    if (item.is_undefined() && !otherwise.is_none()) item = otherwise;
    runtime.spend_steps(1);
  }
  return item;
}

}  // namespace protean::jinja
