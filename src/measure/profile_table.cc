#include "measure/profile_table.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <utility>

#include "quality/swap_order.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr int kRandomOrders = 5;

std::vector<double> at_levels(const std::vector<int>& order, const std::vector<int>& levels,
                              const PerplexityOf& perplexity) {
  std::vector<double> found;
  for (const int level : levels) {
    found.push_back(perplexity(lowered_by(order, level)));
  }
  return found;
}

std::vector<double> mean_of_random(int targets, const std::vector<int>& levels,
                                   const PerplexityOf& perplexity) {
  std::vector<double> sums(levels.size());
  for (int seed = 1; seed <= kRandomOrders; ++seed) {
    const auto one =
        at_levels(random_order(targets, static_cast<std::uint64_t>(seed)), levels, perplexity);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += one[i] / kRandomOrders;
    }
  }
  return sums;
}

template <class Values>
json::array array_of(const Values& values) {
  return json::array(values.begin(), values.end());
}

std::string line(const std::string& name, const std::vector<double>& values) {
  std::string text = fmt::format("{:<28}", name);
  for (const double value : values) {
    text += fmt::format("{:>11.5f}", value);
  }
  return text + "\n";
}

std::string heading(const std::string& name, const std::vector<int>& values) {
  std::string text = fmt::format("{:<28}", name);
  for (const int value : values) {
    text += fmt::format("{:>11}", value);
  }
  return text + "\n";
}

std::vector<double> effects(const IndependenceTable& table, const IndependenceTable::Row& row) {
  std::vector<double> effect;
  for (std::size_t i = 0; i < row.perplexity.size(); ++i) {
    effect.push_back(row.perplexity[i] - table.perplexity[i]);
  }
  return effect;
}

}  // namespace

OrderTable measure_orders(std::string text, const std::vector<NamedOrder>& orders,
                          const PerplexityOf& perplexity) {
  const int targets = static_cast<int>(orders.at(0).targets.size());
  OrderTable table{.text = std::move(text),
                   .unchanged = perplexity(std::vector<bool>(static_cast<std::size_t>(targets))),
                   .levels = table_levels(targets)};
  std::vector<NamedOrder> all = orders;
  all.push_back({"front to back", front_to_back(targets)});
  all.push_back({"back to front", back_to_front(targets)});
  for (const NamedOrder& order : all) {
    table.rows.push_back({order.name, at_levels(order.targets, table.levels, perplexity)});
  }
  table.rows.push_back({fmt::format("random, mean of {}", kRandomOrders),
                        mean_of_random(targets, table.levels, perplexity)});
  return table;
}

// Measures targets at 60 % and 75 % of the depth, after none, 1, 2, 4, ... from the front, as the
// paper does.
IndependenceTable measure_independence(int targets, const PerplexityOf& perplexity) {
  IndependenceTable table;
  const std::vector<int> order = front_to_back(targets);
  const int earlier = targets * 3 / 5;
  for (int first = 0; first <= earlier; first = first == 0 ? 1 : 2 * first) {
    table.first.push_back(first);
    table.perplexity.push_back(perplexity(lowered_by(order, first)));
  }
  for (const int target : {earlier, targets * 3 / 4}) {
    IndependenceTable::Row row{.target = target};
    for (const int first : table.first) {
      std::vector<bool> lowered = lowered_by(order, first);
      lowered[static_cast<std::size_t>(target)] = true;
      row.perplexity.push_back(perplexity(lowered));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string to_text(const OrderTable& table) {
  std::string text =
      fmt::format("\nperplexity of {}, {:.5f} at full precision\n", table.text, table.unchanged) +
      heading("lowered", table.levels);
  for (const OrderTable::Row& row : table.rows) {
    text += line(row.name, row.perplexity);
  }
  return text;
}

std::string to_text(const IndependenceTable& table, const std::vector<std::string>& target_names) {
  std::string text = "\nperplexity of the calibration text, and what one more costs\n" +
                     heading("lowered from the front", table.first) + line("", table.perplexity);
  for (const IndependenceTable::Row& row : table.rows) {
    const std::string& name = target_names[static_cast<std::size_t>(row.target)];
    text += line("and " + name, row.perplexity) + line("  effect", effects(table, row));
  }
  return text;
}

json::object to_json(const OrderTable& table) {
  json::array rows;
  for (const OrderTable::Row& row : table.rows) {
    rows.push_back(json::object{{"order", row.name}, {"perplexity", array_of(row.perplexity)}});
  }
  return {{"text", table.text},
          {"unchanged", table.unchanged},
          {"lowered", array_of(table.levels)},
          {"rows", std::move(rows)}};
}

json::object to_json(const IndependenceTable& table, const std::vector<std::string>& target_names) {
  json::array rows;
  for (const IndependenceTable::Row& row : table.rows) {
    rows.push_back(json::object{{"target", target_names[static_cast<std::size_t>(row.target)]},
                                {"perplexity", array_of(row.perplexity)},
                                {"effect", array_of(effects(table, row))}});
  }
  return {{"first", array_of(table.first)},
          {"perplexity", array_of(table.perplexity)},
          {"rows", std::move(rows)}};
}

}  // namespace protean
