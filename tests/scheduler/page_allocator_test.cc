#include "scheduler/page_allocator.h"

#include "catch2/catch.hpp"

namespace heddle::scheduler {
namespace {

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

TEST_CASE("All pages can be held at once and are distinct", "[scheduler][unit]") {
  PageAllocator pool(/*num_pages=*/5, /*page_tokens=*/1);
  std::vector<PageId> held;
  REQUIRE(pool.Allocate(5, &held).ok());
  std::sort(held.begin(), held.end());
  for (int32_t i = 0; i < 5; ++i) CHECK(held[i] == PageId{i});
  CHECK(pool.num_free() == 0);
}

}  // namespace
}  // namespace heddle::scheduler
