// Orders of service, and the bound on the time that anybody is passed over.
#include "scheduler/policy.h"

#include "catch2/catch.hpp"
#include "scheduler/call_order.h"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

SchedulerOptions PolicyOptions(PolicyKind policy, int32_t slots) {
  return {.num_pages = 400,
          .page_tokens = 4,
          .max_context = 200,
          .max_step_tokens = 64,
          .max_step_seqs = slots,
          .policy = policy};
}

// The order in which requests end, one at a time in the batch.
std::vector<RequestId> OrderOfEnds(Rig* rig) {
  std::vector<RequestId> ends;
  while (rig->Step()) {
    for (const SequenceEvent& event : rig->events) {
      if (event.finished) ends.push_back(event.request);
    }
  }
  return ends;
}

GenerationRequest WithPriority(GenerationRequest request, int32_t priority) {
  request.priority = priority;
  return request;
}

GenerationRequest OfTenant(GenerationRequest request, uint64_t tenant) {
  request.tenant = tenant;
  return request;
}

TEST_CASE("Each policy is found by its name, and says what it looks at", "[scheduler][unit]") {
  for (const PolicyKind kind : {PolicyKind::kFcfs, PolicyKind::kPriority, PolicyKind::kDeadline,
                                PolicyKind::kFair, PolicyKind::kShortest}) {
    const PolicyTraits& traits = TraitsOf(kind);
    CHECK(traits.kind == kind);
    REQUIRE(FindPolicy(traits.name) != nullptr);
    CHECK(FindPolicy(traits.name)->kind == kind);
    CHECK(traits.uses_priority == (kind == PolicyKind::kPriority));
    CHECK(traits.uses_deadline == (kind == PolicyKind::kDeadline));
    CHECK(MakePolicy(kind)->is_per_tenant() == (kind == PolicyKind::kFair));
  }
  CHECK(FindPolicy("") == nullptr);
}

TEST_CASE("The lowest priority number is served first, equal ones as they came",
          "[scheduler][unit]") {
  Rig rig(PolicyOptions(PolicyKind::kPriority, 1));
  RequestId a = rig.Add(WithPriority(MakeRequest(5, 3, 1), 7));
  RequestId b = rig.Add(WithPriority(MakeRequest(5, 3, 2), -1));
  RequestId c = rig.Add(WithPriority(MakeRequest(5, 3, 3), 7));
  RequestId d = rig.Add(WithPriority(MakeRequest(5, 3, 4), 0));
  CHECK(OrderOfEnds(&rig) == std::vector<RequestId>{b, d, a, c});
}

TEST_CASE("What a call asks for later has the place of its first request", "[scheduler][unit]") {
  Rig rig(PolicyOptions(PolicyKind::kFcfs, 1));
  auto of_call = [](GenerationRequest request, uint64_t call) {
    request.call = call;
    return request;
  };
  RequestId first = rig.Add(of_call(MakeRequest(5, 3, 1), 7));
  RequestId other = rig.Add(of_call(MakeRequest(5, 30, 2), 8));
  RequestId third = rig.Add(MakeRequest(5, 3, 3));
  while (!rig.Of(first).finished) REQUIRE(rig.Step());
  REQUIRE(rig.Step());  // `other` runs
  // Branches of the first call: behind nobody who came since, and among themselves in order.
  RequestId branch = rig.Add(of_call(MakeRequest(5, 3, 4), 7));
  RequestId sibling = rig.Add(of_call(MakeRequest(5, 3, 5), 7));
  CHECK(OrderOfEnds(&rig) == std::vector<RequestId>{other, branch, sibling, third});
}

TEST_CASE("Calls beyond those that are remembered begin anew", "[scheduler][unit]") {
  CallOrder order;
  CHECK(order.FirstOf(1, 1) == 1);
  CHECK(order.FirstOf(0, 2) == 2);
  CHECK(order.FirstOf(0, 3) == 3);
  CHECK(order.FirstOf(1, 4) == 1);
  for (uint64_t i = 0; i < CallOrder::kMaxCalls; ++i) order.FirstOf(100 + i, 5 + i);
  CHECK(order.FirstOf(1, 70000) == 70000);
  CHECK(order.FirstOf(100 + CallOrder::kMaxCalls - 1, 70001) == 4 + CallOrder::kMaxCalls);
}

TEST_CASE("The shortest prompt goes first, equal ones as they came", "[scheduler][unit]") {
  Rig rig(PolicyOptions(PolicyKind::kShortest, 1));
  RequestId a = rig.Add(MakeRequest(40, 3, 1));
  RequestId b = rig.Add(MakeRequest(5, 90, 2));  // how long its answer is does not count
  RequestId c = rig.Add(MakeRequest(12, 3, 3));
  RequestId d = rig.Add(MakeRequest(5, 3, 4));
  CHECK(OrderOfEnds(&rig) == std::vector<RequestId>{b, d, c, a});
}

TEST_CASE("A request of higher urgency takes the place of a running one, which goes on later",
          "[scheduler][unit]") {
  Rig rig(PolicyOptions(PolicyKind::kPriority, 2));
  GenerationRequest low = WithPriority(MakeRequest(9, 20, 1), 5);
  RequestId first = rig.Add(low);
  RequestId second = rig.Add(WithPriority(MakeRequest(9, 20, 2), 4));
  for (int i = 0; i < 5; ++i) REQUIRE(rig.Step());
  RequestId urgent = rig.Add(WithPriority(MakeRequest(9, 3, 3), 1));
  REQUIRE(rig.Step());
  CHECK(rig.Of(urgent).tokens.size() == 1);  // in the very next step
  CHECK(rig.scheduler.stats().preemptions == 1);
  CHECK(OrderOfEnds(&rig) == std::vector<RequestId>{urgent, second, first});
  CHECK(rig.Of(first).tokens == Alone(low, 0, 20));
}

TEST_CASE(
    "Whoever waits for the starvation limit is served before an endless stream of urgent ones",
    "[scheduler][unit]") {
  for (PolicyKind policy : {PolicyKind::kPriority, PolicyKind::kDeadline, PolicyKind::kShortest}) {
    SchedulerOptions options = PolicyOptions(policy, 2);
    options.starvation_us = 100;  // one step is 1 us
    Rig rig(options);
    auto urgent = [&](int32_t salt) {
      GenerationRequest request = WithPriority(MakeRequest(5, 10, salt), 0);
      request.deadline_us = 20;
      return request;
    };
    for (int i = 0; i < 4; ++i) rig.Add(urgent(i));
    RequestId poor = rig.Add(WithPriority(MakeRequest(6, 40, 99), 9));
    int64_t started_us = 0, ended_us = 0;
    for (int step = 0; step < 400 && ended_us == 0; ++step) {
      if (rig.scheduler.stats().waiting_requests < 4) rig.Add(urgent(step));
      REQUIRE(rig.Step());
      if (started_us == 0 && !rig.Of(poor).tokens.empty()) started_us = rig.now_us;
      if (rig.Of(poor).finished) ended_us = rig.now_us;
      REQUIRE(rig.scheduler.CheckIntegrity().ok());
    }
    // It starts as soon as one of those that came before it gives up its place, and is not
    // interrupted then.
    CHECK(started_us >= 80);
    CHECK(started_us <= 100 + 10 + 1);
    CHECK(ended_us == started_us + 39);
    // Without a deadline it is taken for one whose time is the limit, and need not be promoted.
    CHECK((rig.scheduler.stats().overdue >= 1) == (policy != PolicyKind::kDeadline));
  }
}

TEST_CASE("The least slack goes first: what is left before the deadline, less the work",
          "[scheduler][unit]") {
  Rig rig(PolicyOptions(PolicyKind::kDeadline, 1));
  auto due = [](GenerationRequest request, int64_t us) {
    request.deadline_us = us;
    return request;
  };
  rig.between = [&] { ++rig.now_us; };
  RequestId running = rig.Add(MakeRequest(5, 20, 1));
  for (int i = 0; i < 10; ++i) REQUIRE(rig.Step());  // the cost model knows: 1 us a step
  RequestId late = rig.Add(due(MakeRequest(5, 3, 2), 5000));
  RequestId soon = rig.Add(due(MakeRequest(5, 3, 3), 3000));
  RequestId long_and_late = rig.Add(due(MakeRequest(5, 60, 4), 5010));  // 4950 < 4997
  CHECK(OrderOfEnds(&rig) == std::vector<RequestId>{running, soon, long_and_late, late});
}

TEST_CASE("The stages of a workflow share the deadline of its first request", "[scheduler][unit]") {
  std::unique_ptr<Policy> policy = MakePolicy(PolicyKind::kDeadline);
  GenerationRequest first, stage, other, none;
  first.workflow = stage.workflow = 7;
  first.deadline_us = 1000;
  other.deadline_us = 900;
  auto key = [&](const GenerationRequest& request, uint64_t number, int64_t now_us) {
    return policy->Key(request, {.number = number, .now_us = now_us, .starvation_us = 5000});
  };
  OrderKey a = key(first, 1, 0), b = key(other, 2, 500), c = key(stage, 3, 600);
  OrderKey d = key(none, 4, 600);
  CHECK(a.rank == 1000);
  CHECK(b.rank == 1400);
  CHECK(c.rank == 1000);  // not 600 + 1000: the workflow began at 0
  CHECK(d.rank == 5600);
  stage.deadline_us = 100;
  CHECK(key(stage, 5, 600).rank == 700);  // a stage may want to be earlier
}

TEST_CASE("One tenant's ten thousand requests take no more than half while another has work",
          "[scheduler][unit]") {
  Rig rig(PolicyOptions(PolicyKind::kFair, 8));
  for (int i = 0; i < 10000; ++i) rig.Add(OfTenant(MakeRequest(10, 40, i % 50), 1));
  for (int i = 0; i < 20; ++i) REQUIRE(rig.Step());  // all places are the first tenant's
  std::vector<RequestId> second;
  for (int i = 0; i < 100; ++i) {
    second.push_back(rig.Add(OfTenant(MakeRequest(10, 40, 1000 + i), 2)));
  }
  for (int i = 0; i < 2; ++i) REQUIRE(rig.Step());
  CHECK_FALSE(rig.Of(second[0]).tokens.empty());  // it need not wait for an end
  int64_t tokens[3] = {};
  for (int step = 0; step < 200; ++step) {
    REQUIRE(rig.Step());
    for (const SequenceEvent& event : rig.events) {
      tokens[event.request >= second[0] ? 2 : 1] += event.num_tokens;
    }
  }
  CHECK(tokens[2] == Approx(tokens[1]).epsilon(0.1));
  // Places do not go to and fro: of some 80 requests that began, few were interrupted.
  CHECK(rig.scheduler.stats().preemptions <= 12);
}

TEST_CASE("A tenant that cancels everything it asks for gains nothing by it", "[scheduler][unit]") {
  Rig rig(PolicyOptions(PolicyKind::kFair, 4));
  std::vector<RequestId> own;
  for (int i = 0; i < 50; ++i) own.push_back(rig.Add(OfTenant(MakeRequest(10, 30, i), 1)));
  int64_t tokens = 0;
  constexpr int kSteps = 300;
  std::vector<RequestId> nasty;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < 5; ++i) {
      nasty.push_back(rig.Add(OfTenant(MakeRequest(40, 100, 100 + step * 5 + i), 2)));
    }
    REQUIRE(rig.Step());
    for (const SequenceEvent& event : rig.events) {
      if (event.request <= own.back()) tokens += event.num_tokens;
    }
    while (nasty.size() > 5) {
      rig.Cancel(nasty.front());
      nasty.erase(nasty.begin());
    }
  }
  // Alone, it would get 4 a step (1,200); a fair half of the places gives 600.
  CHECK(tokens >= kSteps * 2);
}

TEST_CASE("A tenant that was idle comes back without credit", "[scheduler][unit]") {
  Rig rig(PolicyOptions(PolicyKind::kFair, 2));
  for (int i = 0; i < 40; ++i) rig.Add(OfTenant(MakeRequest(10, 20, i), 1));
  for (int step = 0; step < 100; ++step) REQUIRE(rig.Step());
  std::vector<RequestId> late;
  for (int i = 0; i < 40; ++i) late.push_back(rig.Add(OfTenant(MakeRequest(10, 20, 50 + i), 2)));
  int64_t tokens[3] = {};
  for (int step = 0; step < 150; ++step) {
    REQUIRE(rig.Step());
    for (const SequenceEvent& event : rig.events) {
      tokens[event.request >= late[0] ? 2 : 1] += event.num_tokens;
    }
  }
  CHECK(tokens[1] == Approx(tokens[2]).epsilon(0.25));
}

// Tokens of the base's tenant per token of the tenant with adapters, both with work without end.
// `distinct`: each request has an adapter of its own.
double ShareBeside(bool distinct) {
  SchedulerOptions options = PolicyOptions(PolicyKind::kFair, 8);
  options.num_pages = 800;
  options.page_tokens = 4;
  options.adapter_slots = 32;
  options.adapter_load_pages = 50;  // a whole adapter in a step: nobody waits for loads
  Rig rig(options);
  std::vector<RequestId> base;
  for (int i = 0; i < 300; ++i) {
    GenerationRequest request = OfTenant(MakeRequest(10, 40, i), 1);
    SetAdapter(&request, distinct ? 1000 + static_cast<uint64_t>(i) : 1000, /*num_pages=*/50);
    rig.Add(request);
  }
  for (int i = 0; i < 300; ++i) {
    base.push_back(rig.Add(OfTenant(MakeRequest(10, 40, 500 + i), 2)));
  }
  double tokens[3] = {};
  for (int step = 0; step < 1200; ++step) {
    REQUIRE(rig.Step());
    for (const SequenceEvent& event : rig.events) {
      tokens[event.request >= base[0] ? 2 : 1] += event.num_tokens;
    }
  }
  return tokens[2] / tokens[1];
}

// A request of the base costs 10 tokens of its prompt and 40 twice: 90. With an adapter of its own
// it loads 50 pages of 4 tokens, and holds 50 pages of which the pool has 100 for each of 8
// sequences, so that a token costs 2 + 1: 10 + 200 + 120 = 330.
TEST_CASE("A tenant pays for the adapters that it loads and holds", "[scheduler][unit]") {
  CHECK(ShareBeside(/*distinct=*/true) == Approx(330.0 / 90).epsilon(0.15));
}

// One adapter is loaded once, and its four users at a time share what it holds: 10 + 40 * 2.25.
TEST_CASE("Users of one adapter share its price", "[scheduler][unit]") {
  CHECK(ShareBeside(/*distinct=*/false) == Approx(100.0 / 90).epsilon(0.1));
}

}  // namespace
}  // namespace heddle::scheduler
