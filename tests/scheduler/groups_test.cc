// Models whose layers are in groups with different windows: what each group keeps, what is found in
// the prefix cache, and what moves to the host's memory.
#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

// One group of layers with full attention, and two with a window of eight positions.
SchedulerOptions WithGroups() {
  return {.num_pages = 200,
          .page_tokens = 4,
          .max_context = 400,
          .windows = {0, 8, 8},
          .window_grain = 4,
          .max_step_tokens = 16,
          .max_step_seqs = 8};
}

TEST_CASE("Groups of layers with windows give pages back while others keep theirs",
          "[scheduler][unit]") {
  const SchedulerOptions options = WithGroups();
  Rig rig(options);
  const GenerationRequest request = MakeRequest(100, 250);
  CHECK(Scheduler::Validate(request, options).ok());
  const RequestId id = rig.Add(request);
  int32_t most_used = 0;
  while (rig.Step()) {
    REQUIRE(rig.scheduler.CheckIntegrity().ok());
    most_used = std::max(most_used, rig.scheduler.stats().pages_used);
    if (rig.plan.positions.empty()) continue;
    const int64_t computed = rig.plan.positions.back() + 1;
    const int64_t all = (computed + 3) / 4;
    // Beside them two windows, each of 8 positions, a grain, a step, and a page at either end.
    REQUIRE(rig.scheduler.stats().pages_used <= all + 2 * ((8 + 4 + 16) / 4 + 2));
  }
  CHECK(rig.Of(id).tokens == Alone(request, 0, 250));
  CHECK(most_used > 349 / 4);
  CHECK(rig.scheduler.stats().pages_used == 0);
}

TEST_CASE("The longest sequence is that whose pages of all groups the pool holds",
          "[scheduler][unit]") {
  SchedulerOptions options = WithGroups();
  // A window holds 8 + 4 + 16 + 3 * 4 positions at most: 10 pages. Two of them leave 80 of 100.
  options.num_pages = 100;
  CHECK(Scheduler::MaxContext(options) == 320);
  CHECK(options.page_rule().MostPages(320, options.windows) == 100);
  options.num_pages = 6;  // shorter than any window: the groups share it
  CHECK(Scheduler::MaxContext(options) == 8);
  const absl::Status refused = Scheduler::Validate(MakeRequest(8, 1), options);
  CHECK(absl::IsInvalidArgument(refused));
  Rig rig(options);
  const RequestId id = rig.Add(MakeRequest(4, 4));
  rig.RunAll();
  CHECK(rig.Of(id).tokens == Alone(MakeRequest(4, 4), 0, 4));
}

TEST_CASE("A prefix is taken over from where every group has what its window sees",
          "[scheduler][unit]") {
  const SchedulerOptions options = WithGroups();
  Rig rig(options);
  rig.Add(MakeRequest(100, 1));
  rig.RunAll();
  // The next turn: 100 tokens again, all full pages of which are there.
  GenerationRequest next = MakeRequest(100, 1);
  next.prompt.resize(120, 7);
  const RequestId second = rig.Add(next);
  rig.RunAll();
  CHECK(rig.Of(second).cached_tokens == 100);
  CHECK(rig.Of(second).tokens == Alone(next, 0, 1));
  // A prompt that branches off in the middle, behind which windows have long passed: the pages that
  // they gave back are still there.
  GenerationRequest branch = MakeRequest(60, 1);
  branch.prompt.resize(80, 9);
  const RequestId third = rig.Add(branch);
  rig.RunAll();
  CHECK(rig.Of(third).cached_tokens == 60);
  CHECK(rig.Of(third).tokens == Alone(branch, 0, 1));
}

TEST_CASE("Pages that windows have passed are evicted first, and the prefix stays findable",
          "[scheduler][unit]") {
  SchedulerOptions options = WithGroups();
  options.windows = {0, 8};
  options.max_step_tokens = 8;
  options.num_pages = 24;
  Rig rig(options);
  rig.Add(MakeRequest(40, 1));  // ten pages of each group: four are left
  rig.RunAll();
  CHECK(rig.scheduler.stats().pages_cached == 20);
  rig.Add(MakeRequest(16, 1, /*salt=*/3));  // four of each
  rig.RunAll();
  GenerationRequest next = MakeRequest(40, 1);
  next.prompt.resize(44, 7);
  const RequestId id = rig.Add(next);
  rig.RunAll();
  CHECK(rig.Of(id).cached_tokens == 40);
  CHECK(rig.Of(id).tokens == Alone(next, 0, 1));
  // One that parts from it where windows have passed computes all: what they saw there is gone.
  GenerationRequest branch = MakeRequest(16, 1);
  branch.prompt.resize(20, 9);
  const RequestId other = rig.Add(branch);
  rig.RunAll();
  CHECK(rig.Of(other).cached_tokens < 16);
  CHECK(rig.Of(other).tokens == Alone(branch, 0, 1));
  CHECK(rig.scheduler.CheckIntegrity().ok());
}

TEST_CASE("From the host's memory a prefix comes back with what its windows see",
          "[scheduler][unit]") {
  SchedulerOptions options = WithGroups();
  options.windows = {0, 8};
  options.max_step_tokens = 8;
  options.num_pages = 24;
  options.num_host_pages = 24;
  Rig rig(options);
  rig.Add(MakeRequest(40, 1));
  rig.RunAll();
  rig.Add(MakeRequest(40, 1, /*salt=*/3));
  rig.RunAll();
  const int64_t out = rig.scheduler.stats().pages_swapped_out;
  CHECK(out > 0);
  CHECK(out < 20);  // not what the windows had passed
  GenerationRequest next = MakeRequest(40, 1);
  next.prompt.resize(44, 7);
  const RequestId id = rig.Add(next);
  rig.RunAll();
  CHECK(rig.scheduler.stats().pages_swapped_in > 0);
  CHECK(rig.Of(id).cached_tokens == 40);
  CHECK(rig.Of(id).tokens == Alone(next, 0, 1));
  CHECK(rig.scheduler.CheckIntegrity().ok());
}

TEST_CASE("Branches of one request share the pages of all groups until they part",
          "[scheduler][unit]") {
  Rig rig(WithGroups());
  GenerationRequest request = MakeRequest(10, 5);
  request.num_branches = 3;
  const RequestId id = rig.Add(request);
  REQUIRE(rig.Step());
  CHECK(rig.scheduler.stats().pages_used == 9);  // three pages of each of three groups
  REQUIRE(rig.Step());
  CHECK(rig.plan.page_copies.size() == 6);  // two branches copy the last one of each group
  CHECK(rig.scheduler.stats().pages_used == 15);
  rig.RunAll();
  for (int32_t b = 0; b < 3; ++b) CHECK(rig.Of(id, b).tokens == Alone(request, b, 5));
}

}  // namespace
}  // namespace heddle::scheduler
