#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace protean::loadtest {

struct Point {
  double x = 0;
  double y = 0;
};

enum class SeriesStyle { kLine, kDots };
struct Series {
  std::string name;  // shown in a legend where a chart has more than one
  SeriesStyle style = SeriesStyle::kLine;
  std::vector<Point> points;
  bool bad = false;  // what failed: drawn in the colour of errors
};

// A dashed line across the chart, or a labelled dot where `at` is.
struct Limit {
  std::string label;
  double value = 0;
  bool vertical = false;  // a value of x
};
struct Label {
  std::string text;
  Point at;
};

struct Chart {
  std::string x_label;  // with unit
  std::string y_label;
  bool log_x = false;
  double y_max = 0;  // 0: what the points need
  std::vector<Series> series;
  std::vector<Limit> limits;
  std::vector<Label> labels;
};

// One SVG element that needs nothing but the CSS of chart_css(). Axes of y begin at 0.
std::string svg_of(const Chart& chart);

// Colours of charts for light and dark pages, as custom properties.
std::string_view chart_css();

// Round values that cover [low, high], about `count` of them.
std::vector<double> linear_ticks(double low, double high, int count);
std::vector<double> log_ticks(double low, double high);

std::string escape_html(std::string_view text);

}  // namespace protean::loadtest
