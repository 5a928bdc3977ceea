// Searches that call further searches: what is made of a trace, against APR's own orchestrator
// (tests/golden/make_apr_goldens.py).
#include <fstream>
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/parallel/apr_trace.h"
#include "tests/support/paths.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::AprCalls;
using server::AprResult;

TEST_CASE("Calls, results and joins are those of APR's orchestrator", "[branches]") {
  std::ifstream file(SourceDir() / "tests/golden/apr.json");
  const json cases = json::parse(file);
  REQUIRE(cases.size() == 40);
  for (const json& one : cases) {
    const auto trace = one["trace"].get<std::string>();
    INFO(trace);
    const std::vector<server::AprCall> calls = AprCalls(trace, 100);
    std::vector<std::string> prompts;
    for (const server::AprCall& call : calls) prompts.push_back(call.prompt);
    REQUIRE(json(prompts) == one["prompts"]);
    if (calls.empty()) continue;
    std::vector<std::optional<std::string>> results;
    for (const json& search : one["searches"]) {
      results.push_back(AprResult(search.get<std::string>()));
      const json found = results.back().has_value() ? json(*results.back()) : json();
      CHECK(found == one["results"][results.size() - 1]);
    }
    const server::AprJoin join = server::JoinApr(trace, calls, results);
    CHECK(join.trace == one["joined"].get<std::string>());
    CHECK(join.trace.substr(0, join.kept) == trace.substr(0, join.kept));
    CHECK(join.trace.substr(join.kept).rfind("<Sub Searches>\n", 0) == 0);
    CHECK(AprCalls(trace, 1).size() == 1);
  }
}

TEST_CASE("A trace that is not as the format says calls nothing", "[branches]") {
  const std::string moved = "Moving to Node #0\nCurrent State: 9:[4, 5], Operations: ['1+1=2']\n";
  const auto ending = [](const std::string& list) {
    return "<Calling Sub Searches>\n" + list + "\n<End Calling Sub Searches>";
  };
  const std::string start = "<Start Sub Search 0 at level 1> Moving to Node #0";
  REQUIRE(AprCalls(moved + ending(start), 9).size() == 1);
  CHECK(AprCalls(moved + ending(start), 9)[0].node == "#0");
  CHECK(AprCalls(moved + ending(start), 0).empty());
  for (const std::string& trace :
       {std::string(), std::string("<End Calling Sub Searches>"), ending(start), ending(""),
        moved + ending("Moving to Node #0"), moved + ending(start) + "\nmore",
        "Hello! " + moved + ending(start), moved + ending(start + ",1"),
        "Moving to Node #0\nCurrent State: 9:[4, x], Operations: []\n" + ending(start),
        "Moving to Node #0\nCurrent State: 9:[4], Operations: [1]\n" + ending(start),
        "Moving to Node #0\nCurrent State: 9:[4], Operations: ['it's']\n" + ending(start),
        "Moving to Node #0\nCurrent State: 99999999999999999999:[4], Operations: []\n" +
            ending(start),
        "Generated Node #0: 9:[4] Operation: 1+3=4\n" + ending(start),
        std::string(100000, '[') + ending(start)}) {
    INFO(trace.substr(0, 200));
    CHECK(AprCalls(trace, 9).empty());
  }
  for (const char* trace : {"", "Goal Reached", "goal", "Goal ReachedGoal Reache"}) {
    CHECK_FALSE(AprResult(trace).has_value());
  }
  CHECK(*AprResult("Goal ReachedGoal Reached") == "oal Reached");
}

}  // namespace
}  // namespace heddle::test
