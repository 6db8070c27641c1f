#include "grammar/schema_conjunction.h"

#include <algorithm>
#include <boost/json/array.hpp>

namespace protean::grammar {

namespace {

constexpr std::size_t kMostTogether = 1000;

class Flattener {
 public:
  explicit Flattener(const SchemaDocument& document) : document_(&document) {}

  Status add(const SchemaItem& item) {
    const std::string& pointer = item.place.pointer;
    if (std::find(path_.begin(), path_.end(), pointer) != path_.end()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "schema at '{}': it is defined by itself alone ($ref and allOf go in a "
                        "circle)",
                        pointer);
    }
    const auto same = std::find_if(seen_.begin(), seen_.end(), [&](const SchemaItem& other) {
      return other.place.pointer == pointer && other.any_of_done == item.any_of_done &&
             other.one_of_done == item.one_of_done;
    });
    if (same != seen_.end()) {
      return {};
    }
    if (seen_.size() >= kMostTogether || path_.size() > SchemaDocument::kMaxDepth) {
      return make_error(ErrorCode::kExhausted,
                        "schema at '{}': more than {} schemas hold together of one value", pointer,
                        kMostTogether);
    }
    seen_.push_back(item);
    path_.push_back(pointer);
    Status status = parts(item);
    path_.pop_back();
    if (limits(item)) {
      flat.push_back(item);
    }
    return status;
  }

  Conjunction flat;

 private:
  Status parts(const SchemaItem& item) {
    const boost::json::object* object = item.place.object();
    if (object == nullptr) {
      return {};
    }
    if (object->contains("$ref")) {
      const Result<SchemaPlace> target = document_->resolve(item.place);
      if (!target) {
        return target.error();
      }
      if (Status status = add({*target}); !status) {
        return status;
      }
    }
    const boost::json::value* all_of = object->if_contains("allOf");
    if (all_of == nullptr) {
      return {};
    }
    if (!all_of->is_array() || all_of->get_array().empty()) {
      return malformed_keyword(item.place, "allOf", "it is not a list of at least one schema");
    }
    for (std::size_t i = 0; i < all_of->get_array().size(); ++i) {
      if (Status status = add({item.place.child("allOf", i)}); !status) {
        return status;
      }
    }
    return {};
  }

  // Returns true if the schema limits values apart from the keywords that parts() resolves.
  static bool limits(const SchemaItem& item) {
    const boost::json::object* object = item.place.object();
    if (object == nullptr) {
      return !(item.place.schema->is_bool() && item.place.schema->get_bool());
    }
    return std::any_of(object->begin(), object->end(), [&item](const auto& member) {
      const std::string_view keyword(member.key().data(), member.key().size());
      if (keyword == "anyOf" || keyword == "oneOf") {
        return keyword == "anyOf" ? !item.any_of_done : !item.one_of_done;
      }
      return !is_annotation(keyword) && !is_applicator(keyword) &&
             !(keyword == "$id" && item.place.pointer == "#");
    });
  }

  const SchemaDocument* document_;
  std::vector<SchemaItem> seen_;
  std::vector<std::string> path_;
};

class Overlap {
 public:
  explicit Overlap(const SchemaDocument& document) : document_(&document) {}

  Result<bool> disjoint(const Conjunction& a, const Conjunction& b, int depth) {
    constexpr int kMaxDepth = 6;
    constexpr int kMaxComparisons = 20000;
    if (depth > kMaxDepth || ++comparisons_ > kMaxComparisons) {
      return false;
    }
    const Result<Conjunction> left = flattened(*document_, a);
    const Result<Conjunction> right = flattened(*document_, b);
    if (!left || !right) {
      return (left ? right : left).error();
    }
    for (const auto& [choices, other] : {std::pair(&*left, &*right), std::pair(&*right, &*left)}) {
      const Result<std::optional<Alternatives>> options = alternatives(*choices);
      if (!options) {
        return options.error();
      }
      if (options->has_value()) {
        return all_disjoint((*options)->options, *other, depth + 1);
      }
    }
    const Result<Facets> one = facets_of(*left);
    const Result<Facets> two = facets_of(*right);
    if (!one || !two) {
      return (one ? two : one).error();
    }
    return disjoint(*one, *two, depth);
  }

 private:
  Result<bool> all_disjoint(const std::vector<Conjunction>& options, const Conjunction& other,
                            int depth) {
    for (const Conjunction& option : options) {
      Result<bool> apart = disjoint(option, other, depth);
      if (!apart || !*apart) {
        return apart;
      }
    }
    return true;
  }

  Result<bool> disjoint(const Facets& a, const Facets& b, int depth) {
    if (a.values || b.values) {
      const Facets& constant = a.values ? a : b;
      const Facets& other = a.values ? b : a;
      return std::all_of(
          constant.values->begin(), constant.values->end(), [&](const boost::json::value* value) {
            const bool listed =
                !other.values || std::any_of(other.values->begin(), other.values->end(),
                                             [value](const boost::json::value* theirs) {
                                               return equal_json(*value, *theirs);
                                             });
            return !listed || keeps_to(*value, constant) == false ||
                   keeps_to(*value, other) == false;
          });
    }
    const std::uint32_t common = a.types & b.types;
    if ((common & (kNull | kBoolean | kString)) != 0) {
      return false;
    }
    if ((common & (kInteger | kFraction)) != 0) {
      DecimalRange both = a.numbers;
      if (b.numbers.least) {
        both.at_least(*b.numbers.least);
      }
      if (b.numbers.most) {
        both.at_most(*b.numbers.most);
      }
      if (!both.empty()) {
        return false;
      }
    }
    if ((common & kArray) != 0 && a.array_length.least <= b.array_length.most &&
        b.array_length.least <= a.array_length.most) {
      return false;
    }
    return (common & kObject) != 0 ? objects_disjoint(a, b, depth) : Result<bool>(true);
  }

  Result<bool> objects_disjoint(const Facets& a, const Facets& b, int depth) {
    for (const std::string& name : a.required) {
      const std::optional<Conjunction> mine = property(a, name);
      const std::optional<Conjunction> theirs = property(b, name);
      if (!theirs) {
        return true;
      }
      if (mine && b.requires_property(name)) {
        Result<bool> apart = disjoint(*mine, *theirs, depth + 1);
        if (!apart || *apart) {
          return apart;
        }
      }
    }
    return std::any_of(b.required.begin(), b.required.end(),
                       [&](const std::string& name) { return !property(a, name); });
  }

  // Returns the schemas that a property must satisfy, or none if it must be absent.
  static std::optional<Conjunction> property(const Facets& facets, const std::string& name) {
    Conjunction all;
    for (const PropertyKeywords& part : facets.properties) {
      bool known = false;
      if (const SchemaPlace* place = part.find(name); place != nullptr) {
        all.push_back({*place});
        known = true;
      }
      for (const auto& [keys, place] : part.patterns) {
        if (keys.accepts(name)) {
          all.push_back({place});
          known = true;
        }
      }
      if (!known && part.additional) {
        all.push_back({*part.additional});
      }
    }
    const bool never = std::any_of(all.begin(), all.end(),
                                   [](const SchemaItem& item) { return item.place.is_false(); });
    return never ? std::nullopt : std::optional(all);
  }

  const SchemaDocument* document_;
  int comparisons_ = 0;
};

}  // namespace

Result<Conjunction> flattened(const SchemaDocument& document, const Conjunction& schemas) {
  Flattener flattener(document);
  for (const SchemaItem& item : schemas) {
    if (const Status status = flattener.add(item); !status) {
      return status.error();
    }
  }
  return std::move(flattener.flat);
}

Result<std::optional<Alternatives>> alternatives(const Conjunction& flat) {
  for (std::size_t i = 0; i < flat.size(); ++i) {
    const SchemaPlace& place = flat[i].place;
    const boost::json::object* object = place.object();
    const bool any_of = object != nullptr && !flat[i].any_of_done && object->contains("anyOf");
    const bool one_of = object != nullptr && !flat[i].one_of_done && object->contains("oneOf");
    if (!any_of && !one_of) {
      continue;
    }
    const std::string_view keyword = any_of ? "anyOf" : "oneOf";
    const boost::json::value& list = object->at(keyword);
    if (!list.is_array() || list.get_array().empty()) {
      return malformed_keyword(place, keyword, "it is not a list of at least one schema");
    }
    Alternatives found{.keyword = keyword, .place = place};
    for (std::size_t option = 0; option < list.get_array().size(); ++option) {
      Conjunction with = flat;
      (any_of ? with[i].any_of_done : with[i].one_of_done) = true;
      with.push_back({place.child(keyword, option)});
      found.options.push_back(std::move(with));
    }
    return std::optional(std::move(found));
  }
  return std::optional<Alternatives>();
}

Result<Facets> facets_of(const Conjunction& flat) {
  Facets facets;
  for (const SchemaItem& item : flat) {
    if (const Status status = facets.add(item.place); !status) {
      return status.error();
    }
  }
  return facets;
}

std::string key_of(const Conjunction& schemas) {
  std::string key;
  for (const SchemaItem& item : schemas) {
    key += item.place.pointer;
    key += item.any_of_done ? "\n+" : "\n-";
    key += item.one_of_done ? "+\n" : "-\n";
  }
  return key;
}

Result<bool> surely_disjoint(const SchemaDocument& document, const Conjunction& a,
                             const Conjunction& b) {
  return Overlap(document).disjoint(a, b, 0);
}

}  // namespace protean::grammar
