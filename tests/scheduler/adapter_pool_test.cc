// Adapters as pages of the pool: when they are loaded, who waits for it, what stays.
#include <algorithm>

#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

using engine::AdapterId;

SchedulerOptions AdapterOptions() {
  return {.num_pages = 40,
          .page_tokens = 4,
          .max_context = 64,
          .max_step_tokens = 32,
          .max_step_seqs = 4,
          .adapter_slots = 4,
          .adapter_load_pages = 2};
}

GenerationRequest WithAdapter(uint64_t id, int32_t num_pages, int32_t salt = 0,
                              float scale = 1.0f) {
  GenerationRequest request = MakeRequest(6, 8, salt);
  SetAdapter(&request, id, num_pages, scale);
  return request;
}

TEST_CASE("An idle machine loads an adapter at once and runs its sequence in the same step",
          "[scheduler][unit]") {
  Rig rig(AdapterOptions());
  const RequestId id = rig.Add(WithAdapter(7, 10));
  REQUIRE(rig.Step());
  CHECK(rig.plan.adapter_loads.size() == 10);
  REQUIRE(rig.plan.adapter_binds.size() == 1);
  CHECK(rig.plan.adapter_binds[0].adapter == AdapterId{7});
  CHECK(rig.plan.adapter_pages.size() == 10);
  CHECK(rig.plan.sequences[0].adapter_slot == rig.plan.adapter_binds[0].slot);
  CHECK(rig.plan.token_ids.size() == 6);
  REQUIRE(rig.Step());
  CHECK(rig.plan.adapter_loads.empty());
  CHECK(rig.plan.adapter_binds.empty());
  CHECK(rig.plan.sequences[0].adapter_slot >= 0);
  rig.RunAll();
  CHECK(rig.Of(id).tokens == Alone(WithAdapter(7, 10), 0, 8));
  const SchedulerStats stats = rig.scheduler.stats();
  CHECK(stats.pages_used == 0);
  CHECK(stats.adapters_resident == 1);
  CHECK(stats.adapter_pages == 10);
  CHECK(stats.adapter_wait_us == 0);
}

TEST_CASE(
    "Beside running sequences an adapter is loaded a few pages a step, and its sequence runs "
    "with the last of them",
    "[scheduler][unit]") {
  Rig rig(AdapterOptions());
  rig.Add(MakeRequest(4, 20, 1));
  REQUIRE(rig.Step());
  const RequestId id = rig.Add(WithAdapter(7, 5));
  for (const size_t loads : {2, 2}) {
    REQUIRE(rig.Step());
    CHECK(rig.plan.adapter_loads.size() == loads);
    CHECK(rig.plan.adapter_binds.empty());
    CHECK(rig.plan.sequences.size() == 1);  // the other one decodes
    CHECK(rig.scheduler.stats().adapter_waiting == 1);
  }
  REQUIRE(rig.Step());
  CHECK(rig.plan.adapter_loads.size() == 1);
  CHECK(rig.plan.adapter_binds.size() == 1);
  CHECK(rig.plan.sequences.size() == 2);
  CHECK(rig.scheduler.stats().adapter_waiting == 0);
  CHECK(rig.scheduler.stats().adapter_wait_us == 2);  // a step takes 1 us here
  rig.RunAll();
  CHECK(rig.Of(id).tokens == Alone(WithAdapter(7, 5), 0, 8));
}

TEST_CASE("Adapters in the pool and those that are waited for are listed", "[scheduler][unit]") {
  Rig rig(AdapterOptions());
  rig.Add(WithAdapter(7, 10, 0));
  rig.RunAll();  // stays, without users
  rig.Add(MakeRequest(4, 30, 1));
  REQUIRE(rig.Step());
  rig.Add(WithAdapter(9, 5, 2));
  REQUIRE(rig.Step());             // 2 of its 5 pages are chosen
  rig.Add(WithAdapter(8, 30, 3));  // has no place beside the others
  AdapterLists lists = rig.scheduler.adapter_lists(10);
  CHECK(lists.resident == std::vector{AdapterId{7}});
  CHECK(lists.waiting == std::vector{AdapterId{8}, AdapterId{9}});
  CHECK(rig.scheduler.adapter_lists(1).waiting.size() == 1);
  rig.RunAll();
  lists = rig.scheduler.adapter_lists(10);
  CHECK(std::find(lists.resident.begin(), lists.resident.end(), AdapterId{8}) !=
        lists.resident.end());
  CHECK(lists.waiting.empty());
}

TEST_CASE("Two scales of an adapter share its pages and have two slots", "[scheduler][unit]") {
  Rig rig(AdapterOptions());
  const RequestId a = rig.Add(WithAdapter(7, 10, 0, 1.0f));
  const RequestId b = rig.Add(WithAdapter(7, 10, 0, 0.5f));
  REQUIRE(rig.Step());
  CHECK(rig.plan.adapter_loads.size() == 10);
  REQUIRE(rig.plan.adapter_binds.size() == 2);
  CHECK(rig.plan.adapter_binds[0].slot != rig.plan.adapter_binds[1].slot);
  CHECK(rig.plan.adapter_binds[0].scale == 1.0f);
  CHECK(rig.plan.adapter_binds[1].scale == 0.5f);
  rig.RunAll();
  CHECK(rig.Of(a).tokens == Alone(WithAdapter(7, 10, 0, 1.0f), 0, 8));
  CHECK(rig.Of(b).tokens == Alone(WithAdapter(7, 10, 0, 0.5f), 0, 8));
  CHECK(rig.Of(a).tokens != rig.Of(b).tokens);
}

TEST_CASE("Only the pages of an adapter that were evicted are loaded again", "[scheduler][unit]") {
  SchedulerOptions options = AdapterOptions();
  options.num_pages = 20;
  options.prefix_cache = false;
  Rig rig(options);
  rig.Add(WithAdapter(7, 10));
  rig.RunAll();
  // 52 positions take 13 of the 20 pages: 10 are free, so 3 of the adapter's go.
  rig.Add(MakeRequest(44, 8, 1));
  rig.RunAll();
  CHECK(rig.scheduler.stats().adapter_pages_evicted == 3);
  CHECK(rig.scheduler.stats().adapters_resident == 0);
  const RequestId again = rig.Add(WithAdapter(7, 10));
  REQUIRE(rig.Step());
  CHECK(rig.plan.adapter_loads.size() == 3);
  CHECK(rig.plan.adapter_binds.size() == 1);
  rig.RunAll();
  CHECK(rig.Of(again).tokens == Alone(WithAdapter(7, 10), 0, 8));
  CHECK(rig.scheduler.stats().adapter_pages_loaded == 13);
}

TEST_CASE("A sequence gets a place when its prompt and its adapter fit", "[scheduler][unit]") {
  SchedulerOptions options = AdapterOptions();
  options.num_pages = 20;
  Rig rig(options);
  const RequestId first = rig.Add(WithAdapter(7, 10));
  const RequestId second = rig.Add(WithAdapter(8, 10));
  REQUIRE(rig.Step());
  CHECK(rig.scheduler.stats().running_sequences == 1);
  while (!rig.Of(first).finished) {
    REQUIRE(rig.Step());
    CHECK(rig.scheduler.stats().running_sequences <= 1);
  }
  rig.RunAll();
  CHECK(rig.Of(second).tokens == Alone(WithAdapter(8, 10), 0, 8));
  CHECK(rig.scheduler.stats().preemptions == 0);
}

TEST_CASE("All branches of a request have its adapter's slot", "[scheduler][unit]") {
  Rig rig(AdapterOptions());
  GenerationRequest request = WithAdapter(7, 6);
  request.num_branches = 3;
  const RequestId id = rig.Add(request);
  REQUIRE(rig.Step());
  REQUIRE(rig.Step());
  REQUIRE(rig.plan.sequences.size() == 3);
  for (const engine::SequenceSlice& slice : rig.plan.sequences) {
    CHECK(slice.adapter_slot == rig.plan.sequences[0].adapter_slot);
  }
  CHECK(rig.scheduler.CheckIntegrity().ok());
  rig.CancelBranch(id, 0);
  CHECK(rig.scheduler.CheckIntegrity().ok());
  rig.RunAll();
  for (int32_t b = 1; b < 3; ++b) CHECK(rig.Of(id, b).tokens == Alone(request, b, 8));
}

TEST_CASE(
    "A cancelled sequence takes what is loaded of its adapter to the evictable pages, and "
    "frees the rest",
    "[scheduler][unit]") {
  Rig rig(AdapterOptions());
  rig.Add(MakeRequest(4, 20, 1));
  REQUIRE(rig.Step());
  const RequestId id = rig.Add(WithAdapter(7, 10));
  REQUIRE(rig.Step());
  CHECK(rig.scheduler.stats().pages_used == 2 + 10);
  rig.Cancel(id);
  CHECK(rig.scheduler.CheckIntegrity().ok());
  CHECK(rig.scheduler.stats().pages_used == 2);
  CHECK(rig.scheduler.stats().adapter_pages == 2);
  CHECK(rig.scheduler.stats().adapter_waiting == 0);
}

TEST_CASE("A slot is given to another adapter only when no step in flight has rows of it",
          "[scheduler][unit]") {
  SchedulerOptions options = AdapterOptions();
  options.max_step_seqs = 1;
  options.adapter_slots = 1;
  Rig rig(options, /*max_in_flight=*/2);
  rig.ahead = [] { return true; };
  GenerationRequest first = WithAdapter(7, 4);
  first.max_tokens = 2;
  const RequestId a = rig.Add(first);
  const RequestId b = rig.Add(WithAdapter(8, 4, 3));
  rig.RunAll();  // the executor reports a slot that is bound too early
  CHECK(rig.Of(a).tokens == Alone(first, 0, 2));
  CHECK(rig.Of(b).tokens == Alone(WithAdapter(8, 4, 3), 0, 8));
}

TEST_CASE("Adapters of requests that wait are loaded into free pages", "[scheduler][unit]") {
  SchedulerOptions options = AdapterOptions();
  options.max_step_seqs = 1;
  Rig rig(options);
  const RequestId first = rig.Add(MakeRequest(4, 10, 1));
  const RequestId second = rig.Add(WithAdapter(7, 6));
  while (!rig.Of(first).finished) {
    REQUIRE(rig.Step());
    CHECK(rig.plan.adapter_loads.size() <= 2);
  }
  CHECK(rig.scheduler.stats().adapters_resident == 1);
  REQUIRE(rig.Step());
  CHECK(rig.plan.adapter_loads.empty());
  CHECK(rig.plan.token_ids.size() == 6);
  rig.RunAll();
  CHECK(rig.Of(second).tokens == Alone(WithAdapter(7, 6), 0, 8));
}

// Content that is worth more than a page of an adapter.
class Treasure final : public PageOwner {
 public:
  double Credit(PageId, double evicted_last) override { return evicted_last + 100; }
  void Evicted(PageId) override {}
};

TEST_CASE("Loading ahead never evicts what the same step loads", "[scheduler][unit]") {
  const SchedulerOptions options = AdapterOptions();
  PageAllocator pool(/*num_pages=*/4, /*page_tokens=*/4);
  StepBudget budget(options);
  SchedulerStats totals;
  AdapterPool adapters(options, &pool, budget, &totals);
  Treasure treasure;
  std::vector<PageId> held;
  REQUIRE(pool.Allocate(3, &held).ok());
  for (PageId page : held) pool.SetOwner(page, &treasure);
  pool.Release(held);
  RequestState request;
  request.request = WithAdapter(7, 3);
  engine::StepPlan plan;
  engine::StepLocals locals;
  CHECK(adapters.Prefetch(&request, /*max_pages=*/3, &plan, &locals) == 3);
  adapters.EndPrefetch();
  REQUIRE(plan.adapter_loads.size() == 3);
  CHECK(plan.adapter_loads[0].page != plan.adapter_loads[1].page);
  CHECK(plan.adapter_loads[0].page != plan.adapter_loads[2].page);
  CHECK(plan.adapter_loads[1].page != plan.adapter_loads[2].page);
  CHECK(pool.num_free() == 4);
  CHECK(adapters.Prefetch(&request, 3, &plan, &locals) == 0);  // each page once
}

TEST_CASE("Who needs no loads does not wait behind those that do", "[scheduler][unit]") {
  SchedulerOptions options = AdapterOptions();
  options.num_pages = 200;
  options.max_step_seqs = 8;
  options.adapter_slots = 8;
  Rig rig(options);
  rig.Add(MakeRequest(4, 40, 1));
  REQUIRE(rig.Step());
  for (uint64_t adapter = 1; adapter <= 6; ++adapter) rig.Add(WithAdapter(adapter, 20));
  const RequestId base = rig.Add(MakeRequest(4, 1, 2));
  REQUIRE(rig.Step());
  CHECK(rig.Of(base).finished);
  CHECK(rig.scheduler.stats().adapter_waiting == 4);
  rig.RunAll();
}

TEST_CASE("An adapter that can never run is refused with the numbers", "[scheduler][unit]") {
  SchedulerOptions options = AdapterOptions();
  const auto message = [&](const GenerationRequest& request) {
    return std::string(Scheduler::Validate(request, options).message());
  };
  CHECK(Scheduler::Validate(WithAdapter(7, 38), options).ok());  // 2 pages hold 8 positions
  CHECK(message(WithAdapter(7, 39)).find("at most 3 fit") != std::string::npos);
  CHECK(message(WithAdapter(7, 40)).find("takes 40 pages; this server has 40") !=
        std::string::npos);
  CHECK(absl::IsInvalidArgument(Scheduler::Validate(WithAdapter(7, 0), options)));
  CHECK(absl::IsInvalidArgument(Scheduler::Validate(WithAdapter(7, 1 << 30), options)));
  options.adapter_slots = 0;
  CHECK(message(WithAdapter(7, 1)).find("no LoRA adapters") != std::string::npos);
}

TEST_CASE("A sequence beside its adapter ends where the pool ends", "[scheduler][unit]") {
  Rig rig(AdapterOptions());
  GenerationRequest request = WithAdapter(7, 35);
  request.max_tokens = 60;
  const RequestId id = rig.Add(request);
  rig.RunAll();
  CHECK(rig.Of(id).reason == FinishReason::kLength);
  CHECK(rig.Of(id).tokens == Alone(request, 0, 20 - 6));  // 5 pages of 4
}

TEST_CASE("Plans without adapters say nothing of them", "[scheduler][unit]") {
  Rig rig(AdapterOptions());
  rig.Add(MakeRequest(6, 8, 1));
  while (rig.Step()) {
    CHECK(rig.plan.adapter_loads.empty());
    CHECK(rig.plan.adapter_binds.empty());
    CHECK(rig.plan.adapter_pages.empty());
    for (const auto& slice : rig.plan.sequences) CHECK(slice.adapter_slot == -1);
    CHECK(rig.scheduler.locals().adapters.empty());
  }
}

}  // namespace
}  // namespace heddle::scheduler
