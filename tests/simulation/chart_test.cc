#include "server/simulation/chart.h"

#include <cmath>
#include <regex>

#include "catch2/catch.hpp"

namespace heddle::server {
namespace {

TEST_CASE("Ticks are round numbers that enclose the values", "[simulation]") {
  CHECK(RoundTicks(0, 100, 5) == std::vector<double>{0, 20, 40, 60, 80, 100});
  CHECK(RoundTicks(0, 7, 5) == std::vector<double>{0, 2, 4, 6, 8});
  CHECK(RoundTicks(3, 3, 5).size() >= 2);
}

TEST_CASE("A chart draws each series, and its texts cannot break the picture", "[simulation]") {
  const std::string svg = ChartsToSvg(
      "a <b> & \"c\"",
      {{.title = "t",
        .series = {{"one", "#000", {{0, 1}, {1, 2}, {2, NAN}}}, {"two", "#fff", {{0, 3}, {2, 5}}}}},
       {.title = "empty", .log_y = true, .series = {{"none", "#000", {{0, 0}}}}}});
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(svg.find("a &lt;b&gt; &amp; \"c\"") != std::string::npos);
  const std::regex path("<path ");
  CHECK(std::distance(std::sregex_iterator(svg.begin(), svg.end(), path), {}) == 2);
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg.find("inf") == std::string::npos);
}

}  // namespace
}  // namespace heddle::server
