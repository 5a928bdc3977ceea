#include "scheduler/prefix_cache.h"

#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

SchedulerOptions Roomy() {
  return {.num_pages = 512,
          .page_tokens = 16,
          .max_context = 4096,
          .max_step_tokens = 512,
          .max_step_seqs = 128};
}

GenerationRequest WithTail(int32_t num_shared, int32_t num_own, int32_t salt) {
  GenerationRequest request = MakeRequest(num_shared, 4);
  for (int32_t i = 0; i < num_own; ++i) request.prompt.push_back((salt * 13 + i) % kVocab);
  return request;
}

TEST_CASE("A later prompt takes over full pages and a copy of a partial one", "[scheduler][unit]") {
  Rig rig(Roomy());
  rig.Add(MakeRequest(40, 10));  // positions 0..48 are computed: three full pages
  rig.RunAll();
  GenerationRequest request = MakeRequest(40, 4);
  request.prompt.resize(44, 999);  // 32 + 8 positions are the same
  RequestId id = rig.Add(request);
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids == std::vector<TokenId>(4, 999));
  REQUIRE(rig.plan.page_copies.size() == 1);
  CHECK(rig.plan.page_copies[0].num_tokens == 8);
  rig.RunAll();
  CHECK(rig.Of(id).cached_tokens == 40);
  CHECK(rig.Of(id).tokens == Alone(request, 0, 4));
  CHECK(rig.scheduler.stats().pages_used == 0);
}

TEST_CASE("The same prompt again computes one token", "[scheduler][unit]") {
  Rig rig(Roomy());
  GenerationRequest request = MakeRequest(48, 4);
  rig.Add(request);
  rig.RunAll();
  RequestId id = rig.Add(request);
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids.size() == 1);
  rig.RunAll();
  CHECK(rig.Of(id).cached_tokens == 47);
  CHECK(rig.Of(id).tokens == Alone(request, 0, 4));
}

TEST_CASE("The next turn of a chat finds the answer of the last one", "[scheduler][unit]") {
  Rig rig(Roomy());
  GenerationRequest turn = MakeRequest(20, 30);
  RequestId first = rig.Add(turn);
  rig.RunAll();
  for (TokenId token : rig.Of(first).tokens) turn.prompt.push_back(token);
  turn.prompt.resize(70, 5);
  RequestId second = rig.Add(turn);
  rig.RunAll();
  CHECK(rig.Of(second).cached_tokens == 48);  // 49 computed by the first turn: three full pages
  CHECK(rig.Of(second).tokens == Alone(turn, 0, 30));
}

TEST_CASE("A prefix that 100 requests share is computed once even if they come at one time",
          "[scheduler][unit]") {
  Rig rig(Roomy());
  std::vector<std::pair<RequestId, GenerationRequest>> all;
  for (int32_t i = 0; i < 100; ++i) {
    GenerationRequest request = WithTail(1000, 20, i);
    all.emplace_back(rig.Add(request), request);
  }
  rig.RunAll();
  for (const auto& [id, request] : all) CHECK(rig.Of(id).tokens == Alone(request, 0, 4));
  // 992 of the 1,000 are full pages; the partial one comes as a copy. Unique: 1000 + 100 * 20.
  int64_t computed = rig.scheduler.stats().prompt_tokens;
  CHECK(computed >= 3000);
  CHECK(computed <= 3000 * 105 / 100);
}

TEST_CASE("Spaces share no prefix", "[scheduler][unit]") {
  Rig rig(Roomy());
  GenerationRequest request = MakeRequest(48, 4);
  rig.Add(request);
  rig.RunAll();
  request.cache_space = 7;
  RequestId id = rig.Add(request);
  rig.RunAll();
  CHECK(rig.Of(id).cached_tokens == 0);
  CHECK(rig.scheduler.stats().prompt_tokens == 96);
}

TEST_CASE("A prompt whose tokens are scored is computed in full", "[scheduler][unit]") {
  Rig rig(Roomy());
  GenerationRequest request = MakeRequest(48, 1);
  rig.Add(request);
  rig.RunAll();
  request.prompt_logprobs = 0;
  RequestId id = rig.Add(request);
  rig.RunAll();
  CHECK(rig.Of(id).scores.size() == 47);
}

TEST_CASE("A full pool drops the prefix used longest ago", "[scheduler][unit]") {
  SchedulerOptions options = Roomy();
  options.num_pages = 8;  // two prompts of three pages, and two to spare
  Rig rig(options);
  auto cached = [&](int32_t salt) {
    RequestId id = rig.Add(MakeRequest(48, 1, salt));
    rig.RunAll();
    return rig.Of(id).cached_tokens;
  };
  CHECK(cached(1) == 0);
  CHECK(cached(2) == 0);
  CHECK(cached(1) == 47);  // 2 is the older one now
  CHECK(cached(3) == 0);
  CHECK(cached(1) == 47);
  CHECK(cached(2) < 47);
}

TEST_CASE("A request that needs the whole pool gives up the page that it would copy",
          "[scheduler][unit]") {
  SchedulerOptions options = Roomy();
  options.num_pages = 2;
  Rig rig(options);
  GenerationRequest request = MakeRequest(32, 0);
  rig.Add(request);  // fills both pages
  rig.RunAll();
  request = MakeRequest(31, 1);  // 16 + 14 cached positions: a copy of the second needs a third
  RequestId id = rig.Add(request);
  rig.RunAll();
  CHECK(rig.Of(id).tokens == Alone(request, 0, 1));
  CHECK(rig.scheduler.idle());
}

TEST_CASE("Two prompts with one hash never share a page", "[scheduler][unit]") {
  PageAllocator pool(4, 2);
  PrefixCache cache(&pool);
  PageId page = pool.AllocateOne();
  std::vector<TokenId> tokens = {1, 2}, others = {3, 4};
  constexpr uint64_t kRoot = 11, kOtherRoot = 12, kHash = 99;
  REQUIRE(cache.Insert(page, kHash, kRoot, PrefixCache::kNone, tokens));
  CHECK(cache.Find(kHash, kRoot, PrefixCache::kNone, tokens) == page);
  CHECK(cache.Find(kHash, kRoot, PrefixCache::kNone, others) == PrefixCache::kNone);
  CHECK(cache.Find(kHash, kOtherRoot, PrefixCache::kNone, tokens) == PrefixCache::kNone);
  CHECK(cache.Find(kHash, kRoot, PageId{2}, tokens) == PrefixCache::kNone);
  CHECK_FALSE(cache.Insert(pool.AllocateOne(), kHash, kRoot, PrefixCache::kNone, others));
}

TEST_CASE("What takes longer to compute stays longer, but not for ever", "[scheduler][unit]") {
  PageAllocator pool(4, 2);
  PrefixCache cache(&pool);
  cache.set_worth([](int32_t depth) { return depth == 0 ? 1.0 : 3.0; });
  std::vector<PageId> pages;
  auto insert = [&](uint64_t space, int32_t length) {
    pages.clear();
    REQUIRE(pool.Allocate(length, &pages).ok());
    uint64_t hash = PrefixCache::EmptyHash(space);
    PageId parent = PrefixCache::kNone;
    for (PageId page : pages) {
      const std::vector<TokenId> tokens = {static_cast<TokenId>(space), 1};
      const uint64_t next = PrefixCache::Extend(hash, tokens);
      REQUIRE(cache.Insert(page, next, hash, parent, tokens));
      hash = next;
      parent = page;
    }
    for (auto page = pages.rbegin(); page != pages.rend(); ++page) pool.Release(*page);
    return pages;
  };
  const std::vector<PageId> deep = insert(1, 2);    // credits 3 and, for its child's sake, 3
  const std::vector<PageId> first = insert(2, 1);   // 1
  const std::vector<PageId> second = insert(3, 1);  // 1
  // LRU would take the deep one's pages first.
  CHECK(insert(4, 1) == first);   // 1 + 1
  CHECK(insert(5, 1) == second);  // 1 + 1
  CHECK(insert(6, 1) == first);   // evicts 2 before 3
  CHECK(insert(7, 1) == second);
  // By now others have as much credit, and it is its turn, the leaf first.
  CHECK(insert(8, 1)[0] == deep[1]);
  CHECK(insert(9, 1)[0] == deep[0]);
  CHECK(pool.CheckIntegrity().ok());
}

TEST_CASE("An evicted page takes its descendants out of the cache, used ones stay with their users",
          "[scheduler][unit]") {
  PageAllocator pool(4, 2);
  PrefixCache cache(&pool);
  std::vector<PageId> pages;
  REQUIRE(pool.Allocate(3, &pages).ok());
  const std::vector<TokenId> tokens = {1, 2};
  uint64_t hash = PrefixCache::EmptyHash(0);
  PageId parent = PrefixCache::kNone;
  for (PageId page : pages) {
    const uint64_t next = PrefixCache::Extend(hash, tokens);
    REQUIRE(cache.Insert(page, next, hash, parent, tokens));
    hash = next;
    parent = page;
  }
  pool.Release(pages[0]);  // as a sliding window does: from the front
  pool.Release(pages[1]);
  std::vector<PageId> taken;
  REQUIRE(pool.Allocate(2, &taken).ok());  // the free one, then the first of the chain
  CHECK(taken[1] == pages[0]);
  CHECK(cache.num_pages() == 0);
  CHECK(pool.references(pages[2]) == 1);
  CHECK(pool.IsExclusive(pages[2]));
  CHECK(pool.num_free() == 1);  // the second of the chain, which nobody could find
  CHECK(cache.CheckIntegrity().ok());
  CHECK(pool.CheckIntegrity().ok());
}

}  // namespace
}  // namespace heddle::scheduler
