// The exposition as Prometheus reads it. The rules are those that `promtool check metrics` checks
// (prometheus/client_golang, promlint), and of the text format itself.
#include <algorithm>
#include <ctime>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/metrics/engine_figures.h"
#include "server/metrics/server_metrics.h"

namespace heddle::test {
namespace {

using server::EngineStats;
using server::ServerMetrics;

struct Family {
  std::string help, type;
  std::vector<std::string> samples;  // lines
};

// Every kind has one observation, so that families with labels show, too.
std::string Exposition(ServerMetrics::Names names) {
  ServerMetrics metrics("a \"model\"\nwith\\odd name", "1.2.3");
  metrics.CountRequest("/v1/models/{id}", "GET", 200);
  metrics.CountGeneration("/v1/completions", "success", 0.1);
  metrics.CountTokens(1, 2, 3);
  metrics.ObserveQueueTime(0.001);
  metrics.ObserveFirstToken(0.01);
  metrics.ObserveInterToken(0.01, 3);
  EngineStats stats;
  stats.pages_total = 8;
  stats.pages_used = 2;
  stats.step_tokens = 30;
  stats.budget_tokens = 40;
  return metrics.Render(stats, {.open = 1}, names);
}

// The family that a sample's name belongs to.
std::string FamilyName(const std::string& sample, const std::map<std::string, Family>& families) {
  for (const char* suffix : {"_bucket", "_sum", "_count"}) {
    const size_t at = sample.rfind(suffix);
    if (at == std::string::npos || at + std::string(suffix).size() != sample.size()) continue;
    const auto found = families.find(sample.substr(0, at));
    if (found != families.end() && found->second.type == "histogram") return found->first;
  }
  return sample;
}

std::map<std::string, Family> Parse(const std::string& text) {
  static const std::regex kComment(R"(# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.*))");
  static const std::regex kSample(
      R"(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{([a-zA-Z_]\w*="(\\[\\n"]|[^\\"\n])*",?)*\})? )"
      R"((-?[0-9.]+(e[+-]?[0-9]+)?|\+Inf|-Inf|Nan))");
  std::map<std::string, Family> families;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    INFO(line);
    std::smatch match;
    if (std::regex_match(line, match, kComment)) {
      std::string& field = match[1] == "HELP" ? families[match[2]].help : families[match[2]].type;
      CHECK(field.empty());
      field = match[3];
      continue;
    }
    const bool is_sample = std::regex_match(line, match, kSample);
    CHECK(is_sample);
    if (is_sample) families[FamilyName(match[1], families)].samples.push_back(line);
  }
  return families;
}

TEST_CASE("What /metrics answers keeps the text format: help, type and samples of each family once",
          "[server][metrics]") {
  const auto families = Parse(Exposition(ServerMetrics::Names::kAlsoVllm));
  CHECK(families.size() > 40);
  for (const auto& [name, family] : families) {
    INFO(name);
    CHECK_FALSE(family.help.empty());
    CHECK(std::set<std::string>{"counter", "gauge", "histogram"}.contains(family.type));
    CHECK_FALSE(family.samples.empty());
    const std::set<std::string> unique(family.samples.begin(), family.samples.end());
    CHECK(unique.size() == family.samples.size());
  }
}

TEST_CASE("Names keep promtool's rules: _total on counters alone, base units, no types in them",
          "[server][metrics]") {
  static const std::regex kUnits(
      "_(s|ms|us|ns|sec|secs|msec|msecs|milliseconds?|microseconds?|nanoseconds?|minutes?|hours?|"
      "kb|mb|gb|kilobytes|megabytes|gigabytes|kib|mib|gib|bits|percent|perc)(_|$)");
  static const std::regex kTypes("(^|_)(gauge|counter|histogram|summary|untyped)(_|$)");
  static const std::regex kSnake("[a-z][a-z0-9_]*");
  for (const auto& [name, family] : Parse(Exposition(ServerMetrics::Names::kOwn))) {
    INFO(name);
    const bool total = name.size() > 6 && name.substr(name.size() - 6) == "_total";
    CHECK(total == (family.type == "counter"));
    CHECK_FALSE(std::regex_search(name, kUnits));
    CHECK_FALSE(std::regex_search(name, kTypes));
    CHECK(std::regex_match(name, kSnake));
    if (family.type == "histogram") continue;
    CHECK_FALSE(std::regex_search(name, std::regex("_(count|sum|bucket)$")));
    for (const std::string& sample : family.samples) {
      CHECK_FALSE(std::regex_search(sample, std::regex("[{,](le|quantile)=")));
    }
  }
}

TEST_CASE("Every figure of the engine stands in the exposition and in the JSON, with its value",
          "[server][metrics]") {
  ServerMetrics metrics("model", "1.2.3");
  EngineStats stats;
  stats.pages_total = 8;
  stats.pages_used = 2;
  stats.pages_swapped_out = 1'000'000;
  stats.forced_tokens = 7;
  stats.swap_seconds = 1.5;
  stats.drafts.drafts = 3;
  stats.drafts.accepted_at = {5, 4};
  stats.drafts.gained_seconds = -0.5;
  stats.drafts.is_off = true;
  const auto families = Parse(metrics.Render(stats, {}));
  const auto figures = nlohmann::json::parse(metrics.RenderJson(stats, {}));
  for (const server::EngineFigure& figure : server::EngineFigures()) {
    INFO(figure.name);
    std::string pointer(figure.name);
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    pointer.insert(0, 1, '/');
    CHECK(figures.at(nlohmann::json::json_pointer(pointer)) == figure.value(stats));
    CHECK(families.contains(std::string(figure.metric)));
  }
  CHECK(figures["pages"]["swapped_out"].dump() == "1000000");
  CHECK(figures["forced_tokens"].dump() == "7");
  CHECK(figures["step_seconds"]["swap"] == 1.5);
  CHECK(families.at("heddle_pages_swapped_out_total").samples.at(0) ==
        "heddle_pages_swapped_out_total 1000000");
  CHECK(families.at("heddle_step_seconds_total").samples.size() == 5);
  CHECK(figures["drafts"]["made"] == 3);
  CHECK(figures["drafts"]["accepted_at_1"] == 4);
  CHECK(figures["drafts"]["paused"] == 1);
  CHECK(families.at("heddle_spec_decode_gained_seconds").samples.at(0) ==
        "heddle_spec_decode_gained_seconds -0.5");
  const auto& places = families.at("heddle_spec_decode_accepted_tokens_per_position_total").samples;
  REQUIRE(places.size() == 16);
  CHECK(places[1] == "heddle_spec_decode_accepted_tokens_per_position_total{position=\"1\"} 4");
}

TEST_CASE("Requests and tokens are counted by key where the operator wants it",
          "[server][metrics]") {
  const auto text = [](bool watches) {
    server::ServerMetrics metrics("m", "v");
    if (watches) metrics.WatchKeys();
    metrics.CountKey("ann", "success", 7, 3);
    metrics.CountKey("ann", "rejected", 0, 0);
    metrics.CountKey("", "success", 5, 5);  // a request without a key
    return metrics.Render({}, {});
  };
  CHECK(text(false).find("heddle_key_") == std::string::npos);
  for (const char* line : {R"(heddle_key_requests_total{key="ann",outcome="success"} 1)",
                           R"(heddle_key_requests_total{key="ann",outcome="rejected"} 1)",
                           R"(heddle_key_tokens_total{key="ann",kind="prompt"} 7)",
                           R"(heddle_key_tokens_total{key="ann",kind="generated"} 3)"}) {
    INFO(line);
    CHECK(text(true).find(line) != std::string::npos);
  }
  CHECK(text(true).find("key=\"\"") == std::string::npos);
}

TEST_CASE("A restart shows in the time at which the process began", "[server][metrics]") {
  const std::map<std::string, Family> families = Parse(Exposition(ServerMetrics::Names::kOwn));
  const std::string& sample = families.at("process_start_time_seconds").samples.at(0);
  const double began = std::stod(sample.substr(sample.find(' ')));
  const auto now = static_cast<double>(std::time(nullptr));
  CHECK(began > now - 3600);  // this test's own process
  CHECK(began < now + 5);     // boot times are whole seconds, and clocks are set
}

TEST_CASE("A histogram's buckets rise to +Inf, which is its count", "[server][metrics]") {
  const auto families = Parse(Exposition(ServerMetrics::Names::kOwn));
  const Family& family = families.at("heddle_inter_token_seconds");
  double last = 0;
  double infinite = -1;
  double count = -2;
  for (const std::string& sample : family.samples) {
    const double value = std::stod(sample.substr(sample.rfind(' ')));
    if (sample.find("_bucket{") != std::string::npos) {
      CHECK(value >= last);
      last = value;
      if (sample.find("le=\"+Inf\"") != std::string::npos) infinite = value;
    }
    if (sample.find("_count ") != std::string::npos) count = value;
  }
  CHECK(infinite == 3);
  CHECK(count == 3);
}

// The labels are those that the endpoint picker reads (Gateway API Inference Extension, proposal
// 003: model server protocol).
TEST_CASE("Routers read which adapters are in the pool and which are waited for",
          "[server][unit]") {
  using engine::AdapterId;
  ServerMetrics metrics("m", "1");
  metrics.WatchAdapters(
      [] {
        server::AdapterFigures figures;
        figures.wanted = {"cold"};
        figures.wanted_changed_at = 1700000009.5;
        return figures;
      },
      [](const std::vector<AdapterId>& ids) {
        std::vector<std::string> names;
        for (AdapterId id : ids) names.push_back("a" + std::to_string(static_cast<int>(id)));
        return names;
      });
  EngineStats stats;
  stats.adapters.max = 7;
  stats.adapters.lists = {{AdapterId{1}, AdapterId{3}}, {AdapterId{2}}};
  stats.adapters.changed_at = 1700000000.5;
  const std::string text = metrics.Render(stats, {}, ServerMetrics::Names::kAlsoVllm);
  CHECK(text.find("\nvllm:lora_requests_info{max_lora=\"7\",running_lora_adapters=\"a1,a3\","
                  "waiting_lora_adapters=\"cold,a2\"} 1700000009.5\n") != std::string::npos);
  CHECK(text.find("\nheddle_adapter_info{max_adapters=\"7\",running_adapters=\"a1,a3\","
                  "waiting_adapters=\"cold,a2\"} 1700000009.5\n") != std::string::npos);
}

}  // namespace
}  // namespace heddle::test
