// Line charts as SVG 1.1, without a library: axes with round ticks, a legend, one path per series.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace heddle::server {

struct Series {
  std::string label;
  std::string color;                              // a CSS color
  std::vector<std::pair<double, double>> points;  // ascending in x; non-finite points are left out
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_y = false;  // values at or below zero are left out
  std::vector<Series> series;
};

// Draws the charts below each other, under one heading. Texts may hold any characters.
std::string ChartsToSvg(const std::string& heading, const std::vector<Chart>& charts);

// Round numbers (1, 2 or 5 times a power of ten) from at or below `low` to at or above `high`,
// about `count` of them; at least two. REQUIRES: finite.
std::vector<double> RoundTicks(double low, double high, int count);

}  // namespace heddle::server
