#include "scheduler/token_budget.h"

#include <vector>

#include "catch2/catch.hpp"

namespace heddle::scheduler {
namespace {

std::vector<int32_t> Share(std::vector<int32_t> wants, int32_t budget) {
  std::vector<int32_t> shares(wants.size());
  ShareBudget(wants, budget, shares);
  return shares;
}

TEST_CASE("A prompt alone gets the whole budget", "[scheduler][unit]") {
  CHECK(Share({1000}, 256) == std::vector<int32_t>{256});
  CHECK(Share({100}, 256) == std::vector<int32_t>{100});
}

TEST_CASE("A long prompt leaves half of the budget to those behind it", "[scheduler][unit]") {
  CHECK(Share({1000, 40, 30}, 256) == std::vector<int32_t>{186, 40, 30});
  CHECK(Share({1000, 1000}, 256) == std::vector<int32_t>{192, 64});
}

TEST_CASE("No budget gives nothing and one token goes to the first", "[scheduler][unit]") {
  CHECK(Share({5, 5}, 0) == std::vector<int32_t>{0, 0});
  CHECK(Share({5, 5}, 1) == std::vector<int32_t>{1, 0});
}

TEST_CASE("What is given never exceeds the budget or what is wanted", "[scheduler][unit]") {
  for (int32_t budget = 0; budget < 200; ++budget) {
    std::vector<int32_t> wants = {7, 300, 1, 16, 17, 90};
    std::vector<int32_t> shares = Share(wants, budget);
    int32_t sum = 0;
    for (size_t i = 0; i < wants.size(); ++i) {
      CHECK(shares[i] >= 0);
      CHECK(shares[i] <= wants[i]);
      sum += shares[i];
    }
    CHECK(sum == budget);
  }
}

}  // namespace
}  // namespace heddle::scheduler
