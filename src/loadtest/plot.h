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
  std::string name;  // shown in a legend if the chart has several series
  SeriesStyle style = SeriesStyle::kLine;
  std::vector<Point> points;
  bool bad = false;  // drawn in the colour of errors
};

// A dashed line across the chart.
struct Limit {
  std::string label;
  double value = 0;
  bool vertical = false;  // `value` is one of x
};
// A labelled dot.
struct Label {
  std::string text;
  Point at;
};

struct Chart {
  std::string x_label;  // includes the unit
  std::string y_label;
  bool log_x = false;
  double y_max = 0;  // 0: chosen to show all points
  std::vector<Series> series;
  std::vector<Limit> limits;
  std::vector<Label> labels;
};

// Returns one SVG element, which needs the CSS of chart_css(). Its y axis begins at 0.
std::string svg_of(const Chart& chart);

// Returns the CSS of charts: colours as custom properties, for light and dark pages.
std::string_view chart_css();

// Returns about `count` round values that cover [low, high].
std::vector<double> linear_ticks(double low, double high, int count);
std::vector<double> log_ticks(double low, double high);

std::string escape_html(std::string_view text);

}  // namespace protean::loadtest
