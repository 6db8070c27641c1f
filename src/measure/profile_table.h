#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace protean {

// Perplexity with these targets at fewer bits.
using PerplexityOf = std::function<double(const std::vector<bool>& lowered)>;

struct NamedOrder {
  std::string name;
  std::vector<int> targets;
};

// What orders cost at 1, 2, 4, ... and all targets (MorphServe's Tables 3, 6, 7 and 8).
struct OrderTable {
  struct Row {
    std::string name;
    std::vector<double> perplexity;  // by level
  };
  std::string text;
  double unchanged = 0.0;  // perplexity at full precision
  std::vector<int> levels;
  std::vector<Row> rows;
};
// The orders, front to back, back to front, and the mean of five random ones.
OrderTable measure_orders(std::string text, const std::vector<NamedOrder>& orders,
                          const PerplexityOf& perplexity);

// Whether what one more target costs depends on how many are lowered before it (Table 2).
struct IndependenceTable {
  struct Row {
    int target = 0;
    std::vector<double> perplexity;  // with the first of `first` and this target lowered
  };
  std::vector<int> first;          // so many targets, from the front
  std::vector<double> perplexity;  // with just these lowered
  std::vector<Row> rows;
};
IndependenceTable measure_independence(int targets, const PerplexityOf& perplexity);

std::string to_text(const OrderTable& table);
std::string to_text(const IndependenceTable& table, const std::vector<std::string>& target_names);
boost::json::object to_json(const OrderTable& table);
boost::json::object to_json(const IndependenceTable& table,
                            const std::vector<std::string>& target_names);

}  // namespace protean
