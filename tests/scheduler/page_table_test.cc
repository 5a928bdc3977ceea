#include "scheduler/page_table.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "catch2/catch.hpp"

namespace heddle::scheduler {
namespace {

constexpr int32_t kPageTokens = 4;

TEST_CASE("Appending fills the last page before it takes new ones", "[scheduler][unit]") {
  PageAllocator pool(8, kPageTokens);
  std::vector<engine::PageCopy> copies;
  PageTable table;
  CHECK(table.PagesNeeded(6, pool) == 2);
  table.Append(6, &pool, &copies);
  CHECK(table.PagesNeeded(2, pool) == 0);
  CHECK(table.PagesNeeded(3, pool) == 1);
  table.Append(3, &pool, &copies);
  REQUIRE(table.num_pages() == 3);
  CHECK(table.spans()[0].num_tokens == 4);
  CHECK(table.spans()[1].num_tokens == 4);
  CHECK(table.spans()[2].num_tokens == 1);
  CHECK(table.num_tokens() == 9);
  CHECK(copies.empty());
  table.Drop(&pool);
  CHECK(pool.num_used() == 0);
}

TEST_CASE("Of two forks only the first to write copies the half-filled page", "[scheduler][unit]") {
  PageAllocator pool(8, kPageTokens);
  std::vector<engine::PageCopy> copies;
  PageTable a, b;
  a.Append(6, &pool, &copies);
  b.ForkFrom(a, &pool);
  CHECK(pool.num_used() == 2);
  CHECK(a.PagesNeeded(1, pool) == 1);
  PageId shared = a.spans()[1].page;
  a.Append(1, &pool, &copies);
  REQUIRE(copies.size() == 1);
  CHECK(copies[0].from == shared);
  CHECK(copies[0].to == a.spans()[1].page);
  CHECK(copies[0].num_tokens == 2);
  CHECK(b.PagesNeeded(1, pool) == 0);
  b.Append(1, &pool, &copies);
  CHECK(copies.size() == 1);
  CHECK(b.spans()[1].page == shared);
  CHECK(a.spans()[0].page == b.spans()[0].page);
  a.Drop(&pool);
  b.Drop(&pool);
  CHECK(pool.num_used() == 0);
  CHECK(pool.CheckIntegrity().ok());
}

TEST_CASE("A fork after full pages copies nothing", "[scheduler][unit]") {
  PageAllocator pool(8, kPageTokens);
  std::vector<engine::PageCopy> copies;
  PageTable a, b;
  a.Append(8, &pool, &copies);
  b.ForkFrom(a, &pool);
  a.Append(1, &pool, &copies);
  b.Append(1, &pool, &copies);
  CHECK(copies.empty());
  CHECK(pool.num_used() == 4);
  a.Drop(&pool);
  b.Drop(&pool);
}

TEST_CASE("Truncating gives back the pages behind the cut", "[scheduler][unit]") {
  PageAllocator pool(8, kPageTokens);
  std::vector<engine::PageCopy> copies;
  PageTable table;
  table.Append(11, &pool, &copies);
  table.Truncate(5, &pool);
  CHECK(table.num_tokens() == 5);
  CHECK(table.num_pages() == 2);
  CHECK(pool.num_used() == 2);
  table.Truncate(4, &pool);
  CHECK(table.num_pages() == 1);
  table.Drop(&pool);
  CHECK(pool.num_used() == 0);
}

// Random edits of a table, with its lists by version: those of one version agree up to the last
// span of the shorter one.
TEST_CASE("Lists of one version have the same pages", "[scheduler][unit]") {
  PageAllocator pool(64, kPageTokens);
  std::vector<engine::PageCopy> copies;
  PageTable table, fork;
  std::mt19937_64 random(3);
  std::map<uint64_t, std::vector<KvSpan>> longest;
  int compared = 0;
  for (int edit = 0; edit < 20'000; ++edit) {
    const int32_t length = table.num_tokens();
    const auto choice = random() % 8;
    if (choice < 4) {
      if (length < 100) table.Append(1 + static_cast<int32_t>(random() % 6), &pool, &copies);
    } else if (choice == 4) {
      const int32_t cut = length - static_cast<int32_t>(random() % 8);
      table.Truncate(cut < table.num_dropped() ? 0 : std::max(cut, 0), &pool);
    } else if (choice == 5) {
      table.DropFront(length / 3, &pool);
    } else if (choice == 6 && !table.spans().empty()) {
      const PageId fresh = pool.AllocateOne();
      table.ReplacePage(table.num_dropped() / kPageTokens, fresh, &pool);
      pool.Release(fresh);
    } else {
      fork.Drop(&pool);
      fork.ForkFrom(table, &pool);
    }
    pool.FlushReleases();
    if (table.spans().empty()) continue;
    std::vector<KvSpan>& known = longest[table.version()];
    const size_t common = std::min(known.size(), table.spans().size());
    for (size_t i = 0; i + 1 < common; ++i, ++compared) {
      const KvSpan& now = table.spans()[i];
      REQUIRE((now.page == known[i].page && now.num_tokens == known[i].num_tokens));
    }
    if (table.spans().size() >= known.size()) {
      known.assign(table.spans().begin(), table.spans().end());
    }
  }
  CHECK(compared > 10'000);
}

TEST_CASE("Capacity is what Append takes with so many new pages", "[scheduler][unit]") {
  PageAllocator pool(8, kPageTokens);
  std::vector<engine::PageCopy> copies;
  PageTable a, b;
  CHECK(a.Capacity(0, pool) == 0);
  a.Append(6, &pool, &copies);
  CHECK(a.Capacity(0, pool) == 2);
  CHECK(a.Capacity(2, pool) == 10);
  b.ForkFrom(a, &pool);
  CHECK(a.Capacity(0, pool) == 0);  // the shared half page must be copied first
  CHECK(a.Capacity(1, pool) == 2);
  a.Drop(&pool);
  b.Drop(&pool);
}

TEST_CASE("Pages given back from the front leave the positions behind them where they were",
          "[scheduler][unit]") {
  PageAllocator pool(8, 4);
  std::vector<engine::PageCopy> copies;
  PageTable table;
  table.Append(14, &pool, &copies);
  const PageId third = table.PageAt(2, pool);
  table.DropFront(3, &pool);  // within the first page
  CHECK(table.num_dropped() == 0);
  table.DropFront(9, &pool);
  CHECK(table.num_dropped() == 8);
  CHECK(table.num_tokens() == 14);
  CHECK(table.num_pages() == 2);
  CHECK(table.PageAt(2, pool) == third);
  CHECK(pool.num_used() == 2);
  PageTable fork;
  fork.ForkFrom(table, &pool);
  table.Append(3, &pool, &copies);
  REQUIRE(copies.size() == 1);
  CHECK(table.num_tokens() == 17);
  CHECK(table.num_pages() == 3);
  fork.Drop(&pool);
  CHECK(fork.empty());
  CHECK(fork.num_dropped() == 0);
  table.DropFront(1000, &pool);  // more than there is
  CHECK(pool.num_used() == 0);
  CHECK_FALSE(table.empty());
  table.Drop(&pool);
  CHECK(table.empty());
  CHECK(pool.CheckIntegrity().ok());
}

}  // namespace
}  // namespace heddle::scheduler
