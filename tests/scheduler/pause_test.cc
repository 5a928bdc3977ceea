// Requests whose clients do not read: paused ones get no rows, keep their pages while nobody needs
// them, and hold nobody up.
#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

SchedulerOptions RoomyOptions() {
  SchedulerOptions options;
  options.num_pages = 64;
  options.page_tokens = 4;
  options.max_context = 64;
  options.max_step_tokens = 32;
  options.max_step_seqs = 8;
  return options;
}

bool HasTokensOfAlone(const BranchOutcome& got, const GenerationRequest& request,
                      int32_t branch = 0) {
  return got.tokens == Alone(request, branch, request.max_tokens);
}

TEST_CASE("A paused request gets no rows, and the same tokens once it goes on",
          "[scheduler][unit]") {
  Rig rig(RoomyOptions());
  const GenerationRequest request = MakeRequest(5, 12);
  const GenerationRequest other = MakeRequest(5, 20, 1);
  const RequestId paused = rig.Add(request);
  const RequestId beside = rig.Add(other);
  for (int i = 0; i < 4; ++i) REQUIRE(rig.Step());
  const size_t before = rig.Of(paused).tokens.size();
  const int32_t pages = rig.scheduler.stats().pages_used;
  rig.scheduler.Pause(paused);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(rig.Step());
    CHECK(rig.plan.token_ids.size() == 1);  // the other's
  }
  CHECK(rig.Of(paused).tokens.size() == before);
  CHECK(rig.scheduler.stats().pages_used >= pages);  // it keeps its own
  CHECK(rig.scheduler.stats().paused_sequences == 1);
  CHECK(rig.scheduler.stats().running_sequences == 1);
  rig.RunAll();
  CHECK(HasTokensOfAlone(rig.Of(beside), other));
  CHECK_FALSE(rig.scheduler.idle());
  rig.scheduler.Resume(paused, rig.now_us);
  rig.RunAll();
  CHECK(HasTokensOfAlone(rig.Of(paused), request));
  CHECK(rig.scheduler.stats().recomputed_tokens == 0);
  CHECK(rig.scheduler.idle());
}

TEST_CASE("A step in flight still brings its token to a request that is paused meanwhile",
          "[scheduler][unit]") {
  Rig rig(RoomyOptions(), /*max_in_flight=*/2);
  rig.ahead = [] { return true; };
  const GenerationRequest request = MakeRequest(5, 12);
  const RequestId id = rig.Add(request);
  REQUIRE(rig.Step());
  rig.between = [&] { rig.scheduler.Pause(id); };
  while (rig.Step()) {
  }
  // The prompt's step, the one that was in flight when the pause came, and the one behind it.
  CHECK(rig.Of(id).tokens.size() == 3);
  rig.between = nullptr;
  rig.scheduler.Resume(id, rig.now_us);
  rig.RunAll();
  CHECK(HasTokensOfAlone(rig.Of(id), request));
}

TEST_CASE("A paused request gives its place to one that waits", "[scheduler][unit]") {
  SchedulerOptions options = RoomyOptions();
  options.max_step_seqs = 2;
  Rig rig(options);
  GenerationRequest branches = MakeRequest(5, 12);
  branches.num_branches = 2;
  const RequestId paused = rig.Add(branches);
  for (int i = 0; i < 4; ++i) REQUIRE(rig.Step());
  const GenerationRequest other = MakeRequest(5, 4, 1);
  const RequestId waiting = rig.Add(other);
  REQUIRE(rig.Step());
  REQUIRE(rig.Of(waiting).tokens.empty());  // there are two places
  rig.scheduler.Pause(paused);
  REQUIRE(rig.Step());
  CHECK(rig.Of(waiting).tokens.size() == 1);
  CHECK(rig.scheduler.stats().paused_sequences == 2);
  CHECK(rig.scheduler.stats().preemptions == 1);  // one place was enough
  rig.RunAll();
  CHECK(HasTokensOfAlone(rig.Of(waiting), other));
  rig.scheduler.Resume(paused, rig.now_us);
  CHECK(rig.scheduler.stats().paused_sequences == 0);
  rig.RunAll();
  CHECK(HasTokensOfAlone(rig.Of(paused, 0), branches, 0));
  CHECK(HasTokensOfAlone(rig.Of(paused, 1), branches, 1));
  CHECK(rig.scheduler.idle());
}

TEST_CASE("Pages are taken from a paused request first, however urgent it is",
          "[scheduler][unit]") {
  SchedulerOptions options = RoomyOptions();
  options.num_pages = 8;
  options.max_context = 32;
  options.prefix_cache = false;
  Rig rig(options);
  const GenerationRequest oldest = MakeRequest(8, 20);
  const GenerationRequest second = MakeRequest(4, 12, 1);
  const GenerationRequest third = MakeRequest(4, 12, 2);
  const RequestId paused = rig.Add(oldest);
  const RequestId one = rig.Add(second);
  const RequestId two = rig.Add(third);
  REQUIRE(rig.Step());
  rig.scheduler.Pause(paused);
  int64_t preempted_others = 0;
  rig.on_plan = [&] {
    for (const StepNote& note : rig.scheduler.notes()) {
      preempted_others += note.kind == StepNote::Kind::kPreempted && note.request != paused;
    }
  };
  rig.RunAll();
  CHECK(rig.scheduler.stats().preemptions == 1);
  CHECK(preempted_others == 0);
  CHECK(HasTokensOfAlone(rig.Of(one), second));
  CHECK(HasTokensOfAlone(rig.Of(two), third));
  rig.scheduler.Resume(paused, rig.now_us);
  rig.RunAll();
  CHECK(HasTokensOfAlone(rig.Of(paused), oldest));
}

TEST_CASE("Nobody waits for the prefix that a paused request was computing", "[scheduler][unit]") {
  SchedulerOptions options = RoomyOptions();
  options.max_step_tokens = 4;
  Rig rig(options);
  const GenerationRequest request = MakeRequest(40, 4);
  const RequestId leader = rig.Add(request);
  const RequestId follower = rig.Add(request);
  REQUIRE(rig.Step());
  REQUIRE(rig.Of(leader).tokens.empty());
  rig.scheduler.Pause(leader);
  rig.RunAll();
  CHECK(HasTokensOfAlone(rig.Of(follower), request));
  CHECK(rig.Of(leader).tokens.empty());
  rig.scheduler.Resume(leader, rig.now_us);
  rig.RunAll();
  CHECK(HasTokensOfAlone(rig.Of(leader), request));
}

TEST_CASE("A request that is paused before its first step neither waits nor expires",
          "[scheduler][unit]") {
  SchedulerOptions options = RoomyOptions();
  options.max_queue_us = 100;
  Rig rig(options);
  const GenerationRequest request = MakeRequest(5, 4);
  const RequestId id = rig.Add(request);
  rig.scheduler.Pause(id);
  rig.scheduler.Pause(id);  // means nothing more
  CHECK(rig.scheduler.stats().waiting_requests == 0);
  CHECK(rig.scheduler.stats().waiting_tokens == 0);
  CHECK_FALSE(rig.Step());
  rig.now_us += 1000;
  rig.scheduler.Expire(rig.now_us, &rig.events);
  CHECK(rig.events.empty());
  rig.scheduler.Resume(id, rig.now_us);
  rig.scheduler.Resume(id, rig.now_us);
  CHECK(rig.scheduler.stats().waiting_requests == 1);
  CHECK(rig.scheduler.stats().waiting_tokens == 5);
  rig.RunAll();
  CHECK(HasTokensOfAlone(rig.Of(id), request));
}

TEST_CASE("A paused request can be cancelled, wherever it is", "[scheduler][unit]") {
  SchedulerOptions options = RoomyOptions();
  options.max_step_seqs = 1;
  Rig rig(options);
  const RequestId running = rig.Add(MakeRequest(5, 12));
  const RequestId waiting = rig.Add(MakeRequest(5, 12, 1));
  REQUIRE(rig.Step());
  for (const RequestId id : {running, waiting}) rig.scheduler.Pause(id);
  rig.scheduler.Pause(RequestId{99});  // unknown: ignored
  CHECK(rig.scheduler.stats().paused_sequences == 2);
  rig.CancelBranch(waiting, 0);
  CHECK(rig.Of(waiting).reason == FinishReason::kCancelled);
  rig.Cancel(running);
  CHECK(rig.Of(running).reason == FinishReason::kCancelled);
  rig.RunAll();
  CHECK(rig.scheduler.idle());
  CHECK(rig.scheduler.stats().paused_sequences == 0);
  CHECK(rig.scheduler.stats().pages_used == 0);
  CHECK(rig.scheduler.CheckIntegrity().ok());
}

}  // namespace
}  // namespace heddle::scheduler
