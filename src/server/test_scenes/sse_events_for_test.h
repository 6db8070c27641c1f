#pragma once

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace protean {

// Returns the data of named server-sent events. Expects each event's "type" to equal its name.
inline std::vector<boost::json::object> named_events(std::string_view stream) {
  std::vector<boost::json::object> events;
  while (!stream.empty()) {
    const std::size_t end = stream.find("\n\n");
    const std::size_t line = stream.find("\ndata: ");
    if (!stream.starts_with("event: ") || end == std::string_view::npos || line > end) {
      ADD_FAILURE() << "not an event: " << stream;
      return events;
    }
    const std::string_view name = stream.substr(7, line - 7);
    const std::string_view data = stream.substr(line + 7, end - line - 7);
    EXPECT_EQ(data.find('\n'), std::string_view::npos) << data;
    events.push_back(boost::json::parse(boost::json::string_view(data)).as_object());
    EXPECT_EQ(events.back().at("type").as_string(), name);
    stream.remove_prefix(end + 2);
  }
  return events;
}

inline std::vector<std::string> types_of(const std::vector<boost::json::object>& events) {
  std::vector<std::string> types;
  for (const boost::json::object& event : events) {
    types.emplace_back(event.at("type").as_string());
  }
  return types;
}

// Expects equal JSON; the order of keys does not matter.
inline void expect_json(const boost::json::value& value, std::string_view expected) {
  EXPECT_EQ(value, boost::json::parse(boost::json::string_view(expected)))
      << boost::json::serialize(value);
}

}  // namespace protean
