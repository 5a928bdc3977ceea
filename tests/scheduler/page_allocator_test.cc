#include "scheduler/page_allocator.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"

namespace heddle::scheduler {
namespace {

// Remembers the calls that it gets; the test sets the worth of its pages.
class TestOwner final : public PageOwner {
 public:
  double Credit(PageId page, double evicted_last) override {
    seen_evicted_last.push_back(evicted_last);
    const auto found = worth.find(page);
    return evicted_last + (found == worth.end() ? 1.0 : found->second);
  }
  void Evicted(PageId page) override { evicted.push_back(page); }

  std::map<PageId, double> worth;  // 1 where there is none
  std::vector<PageId> evicted;
  std::vector<double> seen_evicted_last;
};

// `count` pages that are held.
std::vector<PageId> Take(PageAllocator& pool, int32_t count) {
  std::vector<PageId> pages;
  REQUIRE(pool.Allocate(count, &pages).ok());
  return pages;
}

TEST_CASE("A failed Allocate changes nothing", "[scheduler][unit]") {
  PageAllocator pool(/*num_pages=*/4, /*page_tokens=*/16);
  std::vector<PageId> held;
  REQUIRE(pool.Allocate(3, &held).ok());
  std::vector<PageId> extra;
  CHECK(absl::IsResourceExhausted(pool.Allocate(2, &extra)));
  CHECK(extra.empty());
  CHECK(pool.num_free() == 1);
  CHECK(pool.CheckIntegrity().ok());
}

TEST_CASE("A page returns to the pool with its last reference", "[scheduler][unit]") {
  PageAllocator pool(/*num_pages=*/2, /*page_tokens=*/16);
  std::vector<PageId> held;
  REQUIRE(pool.Allocate(1, &held).ok());
  pool.Share(held);
  pool.Release(held);
  CHECK(pool.num_used() == 1);
  pool.Release(held);
  CHECK(pool.num_used() == 0);
  CHECK(pool.CheckIntegrity().ok());
}

TEST_CASE("What sequences release stays as it is until the steps in flight are done",
          "[scheduler][unit]") {
  PageAllocator pool(/*num_pages=*/3, /*page_tokens=*/16);
  const std::vector<PageId> pages = Take(pool, 3);
  pool.HoldReleases(5);
  pool.ReleaseOfSequence(pages[0]);
  pool.HoldReleases(6);
  pool.ReleaseOfSequence(pages[1]);
  pool.FreeHeld(5);  // steps before 5 are done
  CHECK(pool.num_free() == 0);
  std::vector<int32_t> references(3);
  pool.AddHeld(references);
  CHECK(references == std::vector<int32_t>{1, 1, 0});
  pool.FreeHeld(6);
  CHECK(pool.num_free() == 1);
  CHECK(pool.references(pages[1]) == 1);
  pool.ReleaseOfSequence(pages[2]);  // step 6 is still in flight
  pool.FreeHeld(7);
  CHECK(pool.num_free() == 3);
  const std::vector<PageId> again = Take(pool, 1);
  pool.ReleaseOfSequence(again[0]);
  CHECK(pool.num_free() == 3);
  CHECK(pool.CheckIntegrity().ok());
}

TEST_CASE("All pages can be held at once and are distinct", "[scheduler][unit]") {
  PageAllocator pool(/*num_pages=*/5, /*page_tokens=*/1);
  std::vector<PageId> held;
  REQUIRE(pool.Allocate(5, &held).ok());
  std::sort(held.begin(), held.end());
  for (int32_t i = 0; i < 5; ++i) CHECK(held[i] == PageId{i});
  CHECK(pool.num_free() == 0);
}

TEST_CASE("The page that was used last is given out first, and pages in order before",
          "[scheduler][unit]") {
  PageAllocator pool(4, 16);
  CHECK(Take(pool, 3) == std::vector<PageId>{PageId{0}, PageId{1}, PageId{2}});
  pool.Release(PageId{0});
  pool.Release(PageId{2});
  CHECK(Take(pool, 3) == std::vector<PageId>{PageId{2}, PageId{0}, PageId{3}});
}

TEST_CASE("A page that is released later is nobody's until then", "[scheduler][unit]") {
  PageAllocator pool(2, 16);
  const std::vector<PageId> held = Take(pool, 2);
  pool.ReleaseLater(held[0]);
  CHECK(pool.num_free() == 0);
  pool.FlushReleases();
  CHECK(pool.num_free() == 1);
  pool.FlushReleases();  // once
  CHECK(pool.num_free() == 1);
  CHECK(pool.CheckIntegrity().ok());
}

TEST_CASE("An owner's page stays until nothing else is free, and its owner is told when it goes",
          "[scheduler][unit]") {
  PageAllocator pool(3, 16);
  TestOwner owner;
  const std::vector<PageId> held = Take(pool, 2);
  pool.SetOwner(held[0], &owner);
  CHECK_FALSE(pool.IsExclusive(held[0]));  // its owner may give it to others
  CHECK(pool.IsExclusive(held[1]));
  pool.Release(held[0]);
  CHECK(pool.num_evictable() == 1);
  CHECK(pool.num_free() == 2);
  CHECK(pool.num_used() == 1);
  CHECK(pool.is_owned(held[0]));
  CHECK(Take(pool, 1) == std::vector<PageId>{PageId{2}});  // the one that is free
  CHECK(owner.evicted.empty());
  CHECK(Take(pool, 1) == std::vector<PageId>{held[0]});
  CHECK(owner.evicted == std::vector<PageId>{held[0]});
  CHECK_FALSE(pool.is_owned(held[0]));
  CHECK(pool.CheckIntegrity().ok());
}

TEST_CASE("An evictable page that is shared again leaves the order, and comes back at its end",
          "[scheduler][unit]") {
  PageAllocator pool(3, 16);
  TestOwner owner;
  const std::vector<PageId> held = Take(pool, 3);
  for (PageId page : held) pool.SetOwner(page, &owner);
  for (PageId page : held) pool.Release(page);
  pool.Share(held[0]);
  CHECK(pool.num_evictable() == 2);
  pool.Release(held[0]);
  CHECK(Take(pool, 3) == std::vector<PageId>{held[1], held[2], held[0]});
  CHECK(owner.evicted == std::vector<PageId>{held[1], held[2], held[0]});
}

TEST_CASE("A page without an owner any more is free at once, and nobody is told",
          "[scheduler][unit]") {
  PageAllocator pool(2, 16);
  TestOwner owner;
  const std::vector<PageId> held = Take(pool, 2);
  for (PageId page : held) pool.SetOwner(page, &owner);
  pool.Release(held[1]);
  pool.ClearOwner(held[1]);
  CHECK(pool.num_evictable() == 0);
  CHECK(pool.num_free() == 1);
  pool.ClearOwner(held[0]);  // while it is held
  CHECK(pool.IsExclusive(held[0]));
  pool.Release(held[0]);
  CHECK(pool.num_evictable() == 0);
  Take(pool, 2);
  CHECK(owner.evicted.empty());
  CHECK(pool.CheckIntegrity().ok());
}

// The numbers are worked out by hand after Cao and Irani: H(p) = L + worth, and L becomes H of what
// is evicted.
TEST_CASE("The page of the least credit goes first, whatever was released before it",
          "[scheduler][unit]") {
  PageAllocator pool(3, 16);
  TestOwner owner;
  const std::vector<PageId> held = Take(pool, 3);
  owner.worth = {{held[0], 5.0}, {held[1], 2.0}, {held[2], 3.0}};
  for (PageId page : held) pool.SetOwner(page, &owner);
  for (PageId page : held) pool.Release(page);  // credits 5, 2 and 3, with L = 0
  CHECK(Take(pool, 1)[0] == held[1]);           // L = 2
  pool.SetOwner(held[1], &owner);
  pool.Release(held[1]);               // 2 + 2
  CHECK(Take(pool, 1)[0] == held[2]);  // L = 3
  CHECK(Take(pool, 1)[0] == held[1]);  // L = 4
  pool.SetOwner(held[1], &owner);
  pool.Release(held[1]);  // 4 + 2: what is worth most has become the oldest
  CHECK(Take(pool, 1)[0] == held[0]);
  CHECK(owner.seen_evicted_last == std::vector<double>{0, 0, 0, 2, 4});
}

TEST_CASE("Two kinds of owners share a pool, and each hears of its own pages only",
          "[scheduler][unit]") {
  PageAllocator pool(4, 16);
  TestOwner prefixes, adapters;
  const std::vector<PageId> held = Take(pool, 4);
  for (int i : {0, 1}) pool.SetOwner(held[i], &prefixes);
  for (int i : {2, 3}) pool.SetOwner(held[i], &adapters);
  adapters.worth = {{held[2], 4.0}, {held[3], 1.0}};
  for (int i : {2, 3, 0, 1}) pool.Release(held[i]);
  Take(pool, 4);
  // Credits 1 in the order of release, then the 4.
  CHECK(adapters.evicted == std::vector<PageId>{held[3], held[2]});
  CHECK(prefixes.evicted == std::vector<PageId>{held[0], held[1]});
}

TEST_CASE("Pages that lose their contents are free, and nobody takes them for what they were",
          "[scheduler][unit]") {
  PageAllocator pool(4, 16);
  TestOwner owner;
  const std::vector<PageId> pages = Take(pool, 3);
  pool.SetOwner(pages[0], &owner);
  const uint32_t generation = pool.generation(pages[1]);
  pool.Release(pages);
  pool.ForgetContents();
  CHECK(pool.num_free() == 4);
  CHECK_FALSE(pool.is_owned(pages[0]));
  CHECK(owner.evicted == std::vector<PageId>{pages[0]});
  CHECK(pool.generation(pages[1]) != generation);
}

TEST_CASE("Pages are evicted in the order of credit and age, in any mixture", "[scheduler][unit]") {
  constexpr int32_t kPages = 64;
  std::mt19937 random(11);
  PageAllocator pool(kPages, 16);
  TestOwner owner;
  std::vector<PageId> held = Take(pool, kPages);
  std::vector<std::pair<double, int>> order;  // credit and when it was released
  std::map<std::pair<double, int>, PageId> page_of;
  for (PageId page : held) {
    owner.worth[page] = static_cast<double>(random() % 8 + 1);
    pool.SetOwner(page, &owner);
  }
  std::shuffle(held.begin(), held.end(), random);
  for (int i = 0; i < kPages; ++i) {
    const std::pair<double, int> key{owner.worth[held[i]], i};
    pool.Release(held[i]);
    order.push_back(key);
    page_of[key] = held[i];
  }
  // Some leave from the middle.
  for (int i = 0; i < kPages; i += 3) {
    pool.ClearOwner(held[i]);
    std::erase(order, std::pair<double, int>{owner.worth[held[i]], i});
    REQUIRE(pool.CheckIntegrity().ok());
  }
  std::sort(order.begin(), order.end());
  Take(pool, kPages);
  std::vector<PageId> wanted;
  for (const auto& key : order) wanted.push_back(page_of.at(key));
  CHECK(owner.evicted == wanted);
}

}  // namespace
}  // namespace heddle::scheduler
