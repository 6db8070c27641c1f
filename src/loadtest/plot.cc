#include "loadtest/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace protean::loadtest {
namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 250;
constexpr double kLeft = 58;
constexpr double kRight = 14;
constexpr double kTop = 26;
constexpr double kBottom = 42;

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e6) {
    return fmt::format("{:g}M", value / 1e6);
  }
  return size >= 1e4 ? fmt::format("{:g}k", value / 1e3) : fmt::format("{:g}", value);
}

// Maps the values of an axis to positions from 0 to 1.
class Scale {
 public:
  Scale(double low, double high, bool log) : low_(low), high_(high), log_(log) {}
  double operator()(double value) const {
    return log_ ? std::log(std::max(value, low_) / low_) / std::log(high_ / low_)
                : (value - low_) / (high_ - low_);
  }
  std::vector<double> ticks(int count) const {
    return log_ ? log_ticks(low_, high_) : linear_ticks(low_, high_, count);
  }
  double high() const { return high_; }

 private:
  double low_;
  double high_;
  bool log_;
};

struct Frame {
  Scale x;
  Scale y;
  double px(double value) const { return kLeft + x(value) * (kWidth - kLeft - kRight); }
  double py(double value) const {
    return kHeight - kBottom - std::clamp(y(value), 0.0, 1.0) * (kHeight - kTop - kBottom);
  }
};

Frame frame_of(const Chart& chart) {
  double x_low = chart.log_x ? 1e300 : 0;
  double x_high = 0;
  double y_high = 0;
  const auto see_x = [&](double x) {
    if (!chart.log_x || x > 0) {
      x_low = std::min(x_low, x);
      x_high = std::max(x_high, x);
    }
  };
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      see_x(point.x);
      y_high = std::max(y_high, point.y);
    }
  }
  for (const Limit& limit : chart.limits) {
    if (limit.vertical) {
      see_x(limit.value);
    } else {
      y_high = std::max(y_high, limit.value * 1.05);
    }
  }
  if (x_high <= x_low) {
    x_low = chart.log_x ? std::min(x_low, 1.0) : 0;
    x_high = std::max(x_high, x_low) + 1;
  }
  if (chart.log_x) {
    x_low *= 0.95;
    x_high *= 1.05;
  }
  if (chart.y_max > 0) {
    y_high = chart.y_max;
  } else {
    y_high = y_high > 0 ? linear_ticks(0, y_high * 1.02, 5).back() : 1;
  }
  return {Scale(x_low, x_high, chart.log_x), Scale(0, y_high, false)};
}

std::string axes(const Chart& chart, const Frame& frame) {
  std::string text;
  auto out = std::back_inserter(text);
  const double floor = kHeight - kBottom;
  for (const double tick : frame.y.ticks(5)) {
    fmt::format_to(out,
                   R"(<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)"
                   R"(<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)",
                   kLeft, kWidth - kRight, frame.py(tick), frame.py(tick), kLeft - 6,
                   frame.py(tick) + 4, tick_text(tick));
  }
  for (const double tick : frame.x.ticks(7)) {
    if (tick > frame.x.high()) {
      continue;
    }
    fmt::format_to(out,
                   R"(<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>)"
                   R"(<text class="tick" x="{0:.1f}" y="{3:.1f}" text-anchor="middle">{4}</text>)",
                   frame.px(tick), floor, floor + 4, floor + 17, tick_text(tick));
  }
  fmt::format_to(out, R"(<line class="axis" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)",
                 kLeft, kWidth - kRight, floor, floor);
  fmt::format_to(out, R"(<text class="name" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)",
                 (kLeft + kWidth - kRight) / 2, kHeight - 7, escape_html(chart.x_label));
  fmt::format_to(out, R"(<text class="name" x="4" y="13">{}</text>)", escape_html(chart.y_label));
  return text;
}

std::string colour(const Series& series, std::size_t place) {
  return series.bad ? "bad" : fmt::format("c{}", place + 1);
}

std::string marks(const Series& series, const std::string& colour, const Frame& frame) {
  std::string text;
  auto out = std::back_inserter(text);
  if (series.style == SeriesStyle::kDots) {
    // One path of lines without length but with round ends takes a tenth of the bytes of circles.
    fmt::format_to(out, R"(<path class="dots {}" d=")", colour);
    for (const Point& point : series.points) {
      fmt::format_to(out, "M{:.1f} {:.1f}h0", frame.px(point.x), frame.py(point.y));
    }
  } else {
    fmt::format_to(out, R"(<path class="line {}" d=")", colour);
    for (const Point& point : series.points) {
      fmt::format_to(out, "{}{:.1f} {:.1f}", &point == series.points.data() ? 'M' : 'L',
                     frame.px(point.x), frame.py(point.y));
    }
  }
  text += "\"/>";
  return text;
}

std::string legend(const std::vector<Series>& series) {
  std::string text;
  if (series.size() < 2) {
    return text;
  }
  double at = kWidth - kRight;
  for (std::size_t i = series.size(); i-- > 0;) {
    at -= 6.3 * static_cast<double>(series[i].name.size()) + 30;
    fmt::format_to(std::back_inserter(text),
                   R"(<rect class="key {}" x="{:.1f}" y="6" width="12" height="4" rx="2"/>)"
                   R"(<text class="tick" x="{:.1f}" y="12">{}</text>)",
                   colour(series[i], i), at, at + 17, escape_html(series[i].name));
  }
  return text;
}

std::string limits_of(const Chart& chart, const Frame& frame) {
  std::string text;
  auto out = std::back_inserter(text);
  for (const Limit& limit : chart.limits) {
    if (limit.vertical) {
      const double x = frame.px(limit.value);
      fmt::format_to(out,
                     R"(<line class="limit" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>)",
                     x, kTop, kHeight - kBottom);
      const bool right = x > kWidth * 0.75;
      fmt::format_to(
          out, R"(<text class="limit-name" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)",
          x + (right ? -5 : 5), kTop + 9, right ? "end" : "start", escape_html(limit.label));
    } else {
      const double y = frame.py(limit.value);
      fmt::format_to(out,
                     R"(<line class="limit" x1="{0:.1f}" x2="{1:.1f}" y1="{2:.1f}" y2="{2:.1f}"/>)",
                     kLeft, kWidth - kRight, y);
      fmt::format_to(
          out, R"(<text class="limit-name" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)",
          kWidth - kRight - 2, y - 4, escape_html(limit.label));
    }
  }
  for (const Label& label : chart.labels) {
    const double x = frame.px(label.at.x);
    const double y = frame.py(label.at.y);
    const bool right = x > kWidth * 0.7;
    fmt::format_to(out,
                   R"(<circle class="spot" cx="{:.1f}" cy="{:.1f}" r="3.5"/>)"
                   R"(<text class="spot-name" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)",
                   x, y, x + (right ? -8 : 8), y + (right ? -6 : 13), right ? "end" : "start",
                   escape_html(label.text));
  }
  return text;
}

}  // namespace

std::vector<double> linear_ticks(double low, double high, int count) {
  const double rough = std::max((high - low) / std::max(count, 1), 1e-12);
  const double decade = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * decade;
  for (const double part : {1.0, 2.0, 5.0}) {
    if (part * decade >= rough * 0.999) {
      step = part * decade;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  for (double i = first; i <= last; ++i) {
    ticks.push_back(i == 0 ? 0 : i * step);  // never -0
  }
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  std::vector<double> every;
  std::vector<double> decades;
  for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high; decade *= 10) {
    for (const double part : {1.0, 2.0, 5.0}) {
      const double tick = part * decade;
      if (tick >= low && tick <= high) {
        every.push_back(tick);
        if (part == 1) {
          decades.push_back(tick);
        }
      }
    }
  }
  if (every.size() < 2) {  // the range is too narrow for logarithmic steps
    every = linear_ticks(low, high, 4);
    std::erase_if(every, [&](double tick) { return tick < low || tick > high; });
  }
  return every.size() <= 10 ? every : decades;
}

std::string svg_of(const Chart& chart) {
  const Frame frame = frame_of(chart);
  std::string text = fmt::format(R"(<svg viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">)",
                                 kWidth, kHeight, escape_html(chart.y_label));
  text += axes(chart, frame);
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    text += marks(chart.series[i], colour(chart.series[i], i), frame);
  }
  return text + limits_of(chart, frame) + legend(chart.series) + "</svg>";
}

std::string_view chart_css() {
  return R"(:root{--paper:#fff;--card:#f7f8fa;--ink:#1c2330;--faint:#5b6576;--grid:#e3e6ec;--axis:#9aa3b2;
--c1:#2867d8;--c2:#d2660a;--c3:#0c8577;--c4:#8a4fc7;--bad:#c9252d}
@media(prefers-color-scheme:dark){:root{--paper:#12151b;--card:#1a1f28;--ink:#e7eaf0;--faint:#9aa4b5;
--grid:#2b323e;--axis:#5c6676;--c1:#6fa5ff;--c2:#ffa24f;--c3:#41cbb8;--c4:#c39bf5;--bad:#ff7070}}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font:11px system-ui,sans-serif;fill:var(--faint)}
.grid{stroke:var(--grid)}.axis{stroke:var(--axis)}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.dots{fill:none;stroke-width:3.4;stroke-linecap:round;stroke-opacity:.45}
.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}.bad{stroke:var(--bad)}
.key{stroke:none}.key.c1{fill:var(--c1)}.key.c2{fill:var(--c2)}.key.c3{fill:var(--c3)}.key.c4{fill:var(--c4)}
.key.bad{fill:var(--bad)}
.limit{stroke:var(--bad);stroke-dasharray:5 4}svg .limit-name{fill:var(--bad)}
.spot{fill:var(--c1);stroke:var(--card);stroke-width:1.5}svg .spot-name{fill:var(--ink);font-weight:600}
)";
}

std::string escape_html(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return escaped;
}

}  // namespace protean::loadtest
