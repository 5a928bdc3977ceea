// Lists that share blocks behave as lists that do not.
#include "scheduler/shared_list.h"

#include <random>
#include <vector>

#include "catch2/catch.hpp"

namespace heddle::scheduler {
namespace {

using IntList = SharedList<int, 4>;

void CheckSameItems(const IntList& list, const std::vector<int>& plain) {
  REQUIRE(list.size() == plain.size());
  for (size_t i = 0; i < plain.size(); ++i) REQUIRE(list[i] == plain[i]);
  size_t in_blocks = 0;
  for (const auto& block : list.blocks()) in_blocks += block->size;
  REQUIRE(in_blocks == plain.size());
}

void CheckMatches(const IntList& list, const std::vector<int>& plain, size_t begin) {
  std::vector<int> items(plain.begin() + static_cast<ptrdiff_t>(begin), plain.end());
  CHECK(list.NumSame(begin, items) == items.size());
  items.push_back(0);
  CHECK(list.NumSame(begin, items) == plain.size() - begin);
  for (size_t i = 0; i + 1 < items.size(); ++i) {
    ++items[i];
    REQUIRE(list.NumSame(begin, items) == i);
    --items[i];
  }
}

TEST_CASE("Random edits of lists that share blocks change the edited list alone",
          "[scheduler][unit]") {
  std::mt19937 rng(1);
  auto below = [&rng](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(rng); };
  std::vector<IntList> lists(3);
  std::vector<std::vector<int>> plain(3);
  for (int round = 0; round < 5000; ++round) {
    const size_t at = below(3);
    IntList& list = lists[at];
    std::vector<int>& items = plain[at];
    const size_t kind = below(5);
    if (kind == 0) {
      const size_t from = below(3);
      list = IntList(lists[from]);
      items = std::vector<int>(plain[from]);
    } else if (kind == 1 && items.size() < 30) {
      std::vector<int> more(below(10));
      for (int& item : more) item = static_cast<int>(below(100));
      list.Append(more);
      items.insert(items.end(), more.begin(), more.end());
    } else if (kind == 2) {
      const size_t size = below(items.size() + 1);
      list.Cut(size);
      items.resize(size);
    } else if (kind == 3 && !items.empty()) {
      const size_t i = below(items.size());
      list.Edit(i) = items[i] = static_cast<int>(below(100));
    } else {
      CheckMatches(list, items, below(items.size() + 1));
    }
    for (size_t i = 0; i < lists.size(); ++i) CheckSameItems(lists[i], plain[i]);
  }
}

TEST_CASE("A marked block is copied before it is changed, and its copy has no mark",
          "[scheduler][unit]") {
  IntList list;
  list.Append(std::vector<int>{1, 2, 3, 4, 5, 6});
  for (const auto& block : list.blocks()) block->mark = true;
  const std::shared_ptr<IntList::Block> last = list.blocks()[1];
  list.push_back(7);
  CHECK(list.blocks()[0]->mark);
  CHECK_FALSE(list.blocks()[1]->mark);
  CHECK(list.blocks()[1] != last);
  CHECK(last->size == 2);
}

}  // namespace
}  // namespace heddle::scheduler
