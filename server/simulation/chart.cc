#include "server/simulation/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "base/message.h"

namespace heddle::server {
namespace {

// Sizes in pixels.
constexpr double kWidth = 900, kChartHeight = 240, kHeading = 40;
constexpr double kLeft = 80, kRight = 20, kTop = 34, kBottom = 44;
constexpr double kTicks = 5;

std::string Escape(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                         Escape(text));
}

std::string Line(double x1, double y1, double x2, double y2, const char* color) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                         x1, y1, x2, y2, color);
}

// One axis, which maps values to pixels.
struct Axis {
  double low = 0, high = 1;
  double from_px = 0, to_px = 1;
  bool log = false;

  bool Shows(double value) const { return std::isfinite(value) && (!log || value > 0); }
  double Pixel(double value) const {
    const double at =
        log ? std::log10(value / low) / std::log10(high / low) : (value - low) / (high - low);
    return from_px + at * (to_px - from_px);
  }
};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

std::vector<double> LogTicks(double low, double high) {
  std::vector<double> ticks;
  const double first = std::floor(std::log10(low));
  const double last = std::max(first + 1, std::ceil(std::log10(high)));
  for (double power = first; power <= last; ++power) ticks.push_back(std::pow(10.0, power));
  return ticks;
}

// Sets the axis to the ticks' range and returns them.
std::vector<double> Fit(const Range& range, bool from_zero, Axis* axis) {
  std::vector<double> ticks;
  if (axis->log) {
    ticks = range.empty() ? std::vector<double>{1, 10} : LogTicks(range.low, range.high);
  } else {
    const double low = range.empty() || from_zero ? 0 : range.low;
    ticks = RoundTicks(low, range.empty() ? 1 : range.high, static_cast<int>(kTicks));
  }
  axis->low = ticks.front();
  axis->high = ticks.back();
  return ticks;
}

std::string Path(const Series& series, const Axis& x, const Axis& y) {
  std::string path;
  for (const auto& [at, value] : series.points) {
    if (!x.Shows(at) || !y.Shows(value)) continue;
    path += absl::StrFormat("%s%.1f %.1f", path.empty() ? "M" : "L", x.Pixel(at), y.Pixel(value));
  }
  if (path.empty()) return "";
  return absl::StrFormat("<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"/>\n",
                         path, series.color);
}

std::string Legend(const std::vector<Series>& all, double top) {
  std::string out;
  double x = kWidth - kRight;
  for (auto series = all.rbegin(); series != all.rend(); ++series) {
    out += Text(x, top + kTop - 12, "end", series->label);
    x -= 7.0 * static_cast<double>(series->label.size()) + 8;  // about a letter's width each
    out += absl::StrFormat("<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"4\" fill=\"%s\"/>\n",
                           x - 12, top + kTop - 18, series->color);
    x -= 28;
  }
  return out;
}

std::string Draw(const Chart& chart, double top) {
  Axis x{.from_px = kLeft, .to_px = kWidth - kRight};
  Axis y{.from_px = top + kChartHeight - kBottom, .to_px = top + kTop, .log = chart.log_y};
  Range x_range, y_range;
  for (const Series& series : chart.series) {
    for (const auto& [at, value] : series.points) {
      if (!x.Shows(at) || !y.Shows(value)) continue;
      x_range.Add(at);
      y_range.Add(value);
    }
  }
  std::string out = Text(kLeft, top + kTop - 12, "start", chart.title);
  out += Legend(chart.series, top);
  for (double tick : Fit(y_range, /*from_zero=*/true, &y)) {
    out += Line(x.from_px, y.Pixel(tick), x.to_px, y.Pixel(tick), "#ddd");
    out += Text(kLeft - 6, y.Pixel(tick) + 4, "end", absl::StrFormat("%g", tick));
  }
  for (double tick : Fit(x_range, /*from_zero=*/true, &x)) {
    out += Text(x.Pixel(tick), y.from_px + 16, "middle", absl::StrFormat("%g", tick));
  }
  out += Line(x.from_px, y.from_px, x.to_px, y.from_px, "#444");
  out += Text((x.from_px + x.to_px) / 2, y.from_px + 34, "middle", chart.x_label);
  out += absl::StrFormat(
      "<text transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
      (y.from_px + y.to_px) / 2, Escape(chart.y_label));
  for (const Series& series : chart.series) out += Path(series, x, y);
  return out;
}

}  // namespace

std::vector<double> RoundTicks(double low, double high, int count) {
  if (high <= low) high = low + 1;
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough) step = factor * power;
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step);
  const double last = std::max(first + 1, std::ceil(high / step - 1e-9));
  for (double i = first; i <= last; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string ChartsToSvg(const std::string& heading, const std::vector<Chart>& charts) {
  const double height = kHeading + kChartHeight * static_cast<double>(charts.size());
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
      "height=\"%.0f\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, height, kWidth, height);
  out += Text(kLeft, 26, "start", heading);
  for (size_t i = 0; i < charts.size(); ++i) {
    out += Draw(charts[i], kHeading + kChartHeight * static_cast<double>(i));
  }
  return out + "</svg>\n";
}

}  // namespace heddle::server
