#include "apps/flag_values.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace protean {
namespace {

// Returns how many values a flag takes at most: 0 for a switch.
int most_values(const CLI::App& app, const std::string& flag) {
  return app.get_option("--" + flag)->get_items_expected_max();
}

// True if `flag` is a switch that is off by default, which has no --no- form and needs none.
bool is_off_anyway(const CLI::App& app, const std::string& flag) {
  return most_values(app, flag) == 0 && app.get_option_no_throw("--no-" + flag) == nullptr;
}

// Appends the values that a file or a JSON object gives a flag as arguments.
class ValueWriter {
 public:
  // Both outlive this object.
  ValueWriter(const CLI::App& app, std::string flag, std::vector<std::string>& arguments)
      : flag_(std::move(flag)), most_(most_values(app, flag_)), arguments_(arguments) {}

  Status add_switch(bool on) {
    if (most_ > 0) {
      return wrong(fmt::format("takes a value: give a string or a number, not {}", on));
    }
    arguments_.push_back((on ? "--" : "--no-") + flag_);
    return {};
  }

  Status add_text(std::string text) {
    if (most_ == 0) {
      return wrong("must be true or false");
    }
    arguments_.push_back("--" + flag_);  // --flag= without a text would take the next argument
    arguments_.push_back(std::move(text));
    return {};
  }

  // Fails if the flag does not take a list of `count` values.
  Status check_list(std::size_t count) const {
    return most_ > 1 || count == 1 ? Status() : wrong("takes one value, not a list");
  }

  Status wrong(const std::string& why) const {
    return make_error(ErrorCode::kInvalidArgument, "'{}' {}", flag_, why);
  }

 private:
  const std::string flag_;
  const int most_;
  std::vector<std::string>& arguments_;
};

constexpr const char* kValueTypes =
    "must be a string, a number, true, false or a list of strings "
    "and numbers";

Status append_value(ValueWriter& writer, const toml::node& value) {
  if (const auto* list = value.as_array()) {
    Status added = writer.check_list(list->size());
    for (auto item = list->begin(); added.ok() && item != list->end(); ++item) {
      added = append_value(writer, *item);
    }
    return added;
  }
  if (const auto boolean = value.value_exact<bool>()) {
    return writer.add_switch(*boolean);
  }
  if (auto text = value.value_exact<std::string>()) {
    return writer.add_text(*std::move(text));
  }
  if (const auto integer = value.value_exact<std::int64_t>()) {
    return writer.add_text(std::to_string(*integer));
  }
  if (const auto number = value.value_exact<double>()) {
    return writer.add_text(fmt::format("{}", *number));
  }
  return writer.wrong(kValueTypes);
}

Status append_json(ValueWriter& writer, const boost::json::value& value) {
  if (const auto* list = value.if_array()) {
    Status added = writer.check_list(list->size());
    for (auto item = list->begin(); added.ok() && item != list->end(); ++item) {
      added = append_json(writer, *item);
    }
    return added;
  }
  if (const bool* boolean = value.if_bool()) {
    return writer.add_switch(*boolean);
  }
  if (const auto* text = value.if_string()) {
    return writer.add_text(std::string(std::string_view(*text)));
  }
  return value.is_number() ? writer.add_text(boost::json::serialize(value))
                           : writer.wrong(kValueTypes);
}

}  // namespace

Status append_flag(const CLI::App& app, const std::string& flag, const toml::node& value,
                   std::vector<std::string>& arguments) {
  if (value.value_exact<bool>() == false && is_off_anyway(app, flag)) {
    return {};
  }
  ValueWriter writer(app, flag, arguments);
  const Status added = append_value(writer, value);
  return added.ok() ? added
                    : make_error(ErrorCode::kInvalidArgument, "line {}: {}",
                                 value.source().begin.line, added.error().message);
}

Status append_flag(const CLI::App& app, const std::string& flag, const boost::json::value& value,
                   std::vector<std::string>& arguments) {
  if (value == false && is_off_anyway(app, flag)) {
    return {};
  }
  ValueWriter writer(app, flag, arguments);
  return append_json(writer, value);
}

}  // namespace protean
