#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace protean {

// Returns the perplexity with these targets at fewer bits.
using PerplexityOf = std::function<double(const std::vector<bool>& lowered)>;

struct NamedOrder {
  std::string name;
  std::vector<int> targets;
};

// Perplexities of orders with 1, 2, 4, ... and all targets lowered (MorphServe's Tables 3, 6, 7,
// 8).
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
// Measures the orders, front to back, back to front, and the mean of five random orders.
OrderTable measure_orders(std::string text, const std::vector<NamedOrder>& orders,
                          const PerplexityOf& perplexity);

// Shows if the cost of one more target depends on how many are lowered already (Table 2).
struct IndependenceTable {
  struct Row {
    int target = 0;
    std::vector<double> perplexity;  // perplexity with the first of `first` and this target lowered
  };
  std::vector<int> first;          // numbers of targets lowered from the front
  std::vector<double> perplexity;  // perplexity with only these lowered
  std::vector<Row> rows;
};
IndependenceTable measure_independence(int targets, const PerplexityOf& perplexity);

std::string to_text(const OrderTable& table);
std::string to_text(const IndependenceTable& table, const std::vector<std::string>& target_names);
boost::json::object to_json(const OrderTable& table);
boost::json::object to_json(const IndependenceTable& table,
                            const std::vector<std::string>& target_names);

}  // namespace protean
