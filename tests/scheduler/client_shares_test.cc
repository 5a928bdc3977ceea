// Shares of clients on machines that are formulas: a step takes a fixed time and a time for each of
// its rows, so that what each client is due follows by hand.
#include "scheduler/client_shares.h"

#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

struct Machine {
  int64_t fixed_us = 0;
  int64_t row_us = 100;
};

constexpr Machine kLinear{.fixed_us = 0, .row_us = 100};
constexpr PolicyKind kPolicies[] = {PolicyKind::kFcfs, PolicyKind::kPriority, PolicyKind::kDeadline,
                                    PolicyKind::kFair, PolicyKind::kShortest};

SchedulerOptions SharesOptions(PolicyKind policy = PolicyKind::kFcfs,
                               int64_t max_lead_us = 20'000) {
  return {.num_pages = 4000,
          .page_tokens = 16,
          .max_context = 4000,
          .max_step_tokens = 256,
          .max_step_seqs = 64,
          .target_step_us = kAutomaticTarget,
          .prefix_cache = false,
          .policy = policy,
          .starvation_us = 60'000'000,
          .max_lead_us = max_lead_us};
}

// A scheduler whose steps take their time, and what each client got.
class SharedMachine {
 public:
  explicit SharedMachine(const SchedulerOptions& options, Machine machine = kLinear)
      : rig(options), machine_(machine) {
    rig.between = [this] {
      last_step_us =
          machine_.fixed_us + machine_.row_us * static_cast<int64_t>(rig.plan.token_ids.size());
      rig.now_us += last_step_us;
    };
  }

  RequestId Add(uint64_t client, GenerationRequest request) {
    request.peer = client;
    const RequestId id = rig.Add(std::move(request));
    client_of[id] = client;
    return id;
  }
  void AddStreams(uint64_t client, int count, int32_t weight = 1) {
    for (int i = 0; i < count; ++i) {
      GenerationRequest request = MakeRequest(4, 3900, static_cast<int32_t>(client) * 100 + i);
      request.weight = weight;
      Add(client, std::move(request));
    }
  }

  void Step() {
    REQUIRE(rig.Step());
    for (const SequenceEvent& event : rig.events) {
      const uint64_t client = client_of[event.request];
      tokens[client] += event.num_tokens;
      const int64_t since_us = std::exchange(last_token_us[client], rig.now_us);
      if (since_us > 0) longest_us[client] = std::max(longest_us[client], rig.now_us - since_us);
    }
  }
  void RunFor(int64_t us) {
    tokens.clear();
    longest_us.clear();
    for (const int64_t end_us = rig.now_us + us; rig.now_us < end_us;) Step();
  }

  Rig rig;
  std::map<RequestId, uint64_t> client_of;
  // Since the last RunFor began.
  std::map<uint64_t, int64_t> tokens;
  std::map<uint64_t, int64_t> longest_us;  // time between two tokens of a client
  std::map<uint64_t, int64_t> last_token_us;
  int64_t last_step_us = 0;

 private:
  const Machine machine_;
};

TEST_CASE("Eight streams keep half of their speed beside a client with forty",
          "[scheduler][unit]") {
  for (const PolicyKind policy : kPolicies) {
    INFO(TraitsOf(policy).name);
    SharedMachine machine(SharesOptions(policy));
    machine.AddStreams(1, 8);
    machine.AddStreams(2, 40);
    machine.RunFor(200'000);
    machine.RunFor(1'000'000);
    // Alone they would get 8 tokens in 800 us: 10,000 a second. So would the other client.
    CHECK(machine.tokens[1] == Approx(5000).epsilon(0.03));
    CHECK(machine.tokens[2] == Approx(5000).epsilon(0.03));
    // The smaller client waits for one step of both, and the larger one until it is even again.
    CHECK(machine.longest_us[1] <= 4800 + 100);
    CHECK(machine.longest_us[2] <= 20'000 + 4800 + 100);
    CHECK(machine.rig.scheduler.stats().live_clients == 2);
    CHECK(machine.rig.scheduler.stats().held > 0);
  }
}

TEST_CASE("Without shares a stream is due what any other is", "[scheduler][unit]") {
  SharedMachine machine(SharesOptions(PolicyKind::kFcfs, /*max_lead_us=*/0));
  machine.AddStreams(1, 8);
  machine.AddStreams(2, 40);
  machine.RunFor(200'000);
  machine.RunFor(1'000'000);
  CHECK(machine.tokens[1] == Approx(10'000 * 8 / 48).epsilon(0.03));
  CHECK(machine.rig.scheduler.stats().held == 0);
}

TEST_CASE("A client alone is planned as if there were no shares", "[scheduler][unit]") {
  std::vector<std::vector<TokenId>> steps[2];
  for (const int64_t max_lead_us : {0, 20'000}) {
    SharedMachine machine(SharesOptions(PolicyKind::kFcfs, max_lead_us),
                          {.fixed_us = 300, .row_us = 70});
    machine.AddStreams(1, 30);
    for (int i = 0; i < 400; ++i) {
      if (i % 10 == 0) machine.Add(1, MakeRequest(300 + i, 20, i));
      machine.Step();
      steps[max_lead_us > 0].push_back(machine.rig.plan.token_ids);
    }
  }
  CHECK(steps[0] == steps[1]);
}

TEST_CASE("Rows that cost next to nothing beside a step's fixed time are not held",
          "[scheduler][unit]") {
  // As on a GPU: one stream alone gets 99 tokens a second; a step of 41 takes 1.4 times as long.
  SharedMachine machine(SharesOptions(), {.fixed_us = 10'000, .row_us = 100});
  machine.AddStreams(1, 1);
  machine.AddStreams(2, 40);
  machine.RunFor(1'000'000);
  machine.RunFor(10'000'000);
  CHECK(machine.tokens[1] >= 10'000'000 / 14'100 - 1);
  CHECK(machine.tokens[2] >= 40 * (10'000'000 / 14'100 - 1));
}

TEST_CASE("Eight clients keep eight ninths of their speed beside a ninth", "[scheduler][unit]") {
  // A step of the eight takes 0.3 + 8 * 0.1 = 1.1 ms, and they are due 0.978 of a token for it.
  SharedMachine machine(SharesOptions(), {.fixed_us = 300, .row_us = 100});
  for (uint64_t client = 1; client <= 8; ++client) machine.AddStreams(client, 1);
  machine.AddStreams(9, 40);
  machine.RunFor(1'000'000);
  machine.RunFor(3'000'000);
  const double due = 3'000'000 / 1100.0 * 8 / 9;
  for (uint64_t client = 1; client <= 8; ++client) {
    CHECK(machine.tokens[client] == Approx(due).epsilon(0.03));
  }
  // The ninth gets a ninth of the time for its rows; their fixed part is there for the others.
  CHECK(machine.tokens[9] == Approx(3'000'000 / 9 / 100.0).epsilon(0.06));
}

TEST_CASE("Shares are in proportion to weights", "[scheduler][unit]") {
  SharedMachine machine(SharesOptions());
  machine.AddStreams(1, 12, /*weight=*/4);
  machine.AddStreams(2, 12, /*weight=*/1);
  machine.AddStreams(3, 30, /*weight=*/1);
  machine.RunFor(500'000);
  machine.RunFor(2'000'000);
  CHECK(machine.tokens[1] == Approx(20'000 * 4 / 6).epsilon(0.05));
  CHECK(machine.tokens[2] == Approx(20'000 / 6).epsilon(0.05));
  CHECK(machine.tokens[3] == Approx(20'000 / 6).epsilon(0.05));
}

TEST_CASE("What is cancelled has been paid for", "[scheduler][unit]") {
  SharedMachine machine(SharesOptions());
  machine.AddStreams(1, 8);
  machine.RunFor(100'000);
  // A client that begins with twenty streams of four answers, and cancels each after some steps.
  std::deque<RequestId> begun;
  int64_t count = 0, steps = 0;
  machine.tokens.clear();
  const int64_t begin_us = machine.rig.now_us;
  while (machine.rig.now_us < begin_us + 2'000'000) {
    while (begun.size() < 20) {
      GenerationRequest request = MakeRequest(20, 1000, static_cast<int32_t>(++count));
      request.num_branches = 4;
      begun.push_back(machine.Add(2, std::move(request)));
    }
    machine.Step();
    if (++steps % 3 > 0) continue;
    machine.rig.Cancel(begun.front());
    begun.pop_front();
  }
  CHECK(machine.tokens[1] >= 10'000 * 0.97);  // half of 20,000
}

TEST_CASE("Long prompts of one client leave the streams of others their share",
          "[scheduler][unit]") {
  for (const PolicyKind policy : kPolicies) {
    INFO(TraitsOf(policy).name);
    SharedMachine machine(SharesOptions(policy));
    machine.AddStreams(1, 4);
    machine.RunFor(100'000);
    for (int i = 0; i < 100; ++i) machine.Add(2, MakeRequest(2000, 1, i));
    machine.RunFor(2'000'000);
    CHECK(machine.tokens[1] >= 10'000 * 0.97);  // half of 20,000
    CHECK(machine.tokens[2] >= 4);              // and 10,000 rows of prompts
  }
}

TEST_CASE("A client that was idle has saved nothing up", "[scheduler][unit]") {
  SharedMachine machine(SharesOptions());
  machine.AddStreams(2, 10);
  machine.RunFor(2'000'000);
  machine.AddStreams(1, 10);
  machine.RunFor(1'000'000);
  // Nobody is held because somebody comes; the lead is what it may get at most beyond a half.
  CHECK(machine.tokens[2] >= 5000 - 200);
  CHECK(machine.tokens[1] >= 4960);  // less the prompts' 4 ms
}

TEST_CASE("Clients that come and go do not hold those that stay", "[scheduler][unit]") {
  // 5 ms a step and 0.1 ms a row: it takes little longer with 30 rows than with 8.
  SharedMachine machine(SharesOptions(), {.fixed_us = 5000, .row_us = 100});
  for (uint64_t client = 1; client <= 8; ++client) machine.AddStreams(client, 1);
  machine.RunFor(1'000'000);
  machine.tokens.clear();
  const int64_t begin_us = machine.rig.now_us;
  for (int32_t round = 0; machine.rig.now_us < begin_us + 5'000'000; ++round) {
    machine.Add(100 + static_cast<uint64_t>(round % 40), MakeRequest(4, 10, round));
    machine.Step();
  }
  // A step of the eight and some ten others, one of them with a prompt of four tokens.
  const int64_t steps = (machine.rig.now_us - begin_us) / (5000 + 100 * 22);
  for (uint64_t client = 1; client <= 8; ++client) CHECK(machine.tokens[client] >= 0.95 * steps);
}

TEST_CASE("A client that leaves when it is ahead is ahead when it comes back",
          "[scheduler][unit]") {
  SharedMachine machine(SharesOptions());
  machine.AddStreams(1, 8);
  machine.RunFor(100'000);
  // Thirty-two streams begin, and are cancelled after three steps, again and again.
  machine.tokens.clear();
  const int64_t begin_us = machine.rig.now_us;
  for (int32_t round = 0; machine.rig.now_us < begin_us + 2'000'000; ++round) {
    std::vector<RequestId> begun;
    for (int i = 0; i < 32; ++i) begun.push_back(machine.Add(2, MakeRequest(4, 9, 32 * round + i)));
    for (int i = 0; i < 3; ++i) machine.Step();
    for (const RequestId id : begun) machine.rig.Cancel(id);
    machine.Step();
  }
  CHECK(machine.tokens[1] >= 10'000 * 0.95);
}

TEST_CASE("Nobody waits for the end of another client's queue", "[scheduler][unit]") {
  for (const PolicyKind policy : kPolicies) {
    INFO(TraitsOf(policy).name);
    SharedMachine machine(SharesOptions(policy));
    for (int i = 0; i < 2000; ++i) machine.Add(2, MakeRequest(600, 100, i));
    machine.RunFor(1'000'000);
    for (int32_t i = 0; i < 5; ++i) {
      const RequestId late = machine.Add(1, MakeRequest(700, 100, 5000 + i));
      const int64_t begin_us = machine.rig.now_us;
      while (!machine.rig.Of(late).finished) machine.Step();
      // Its 800 rows take 80 ms alone, and 160 with a half of the machine.
      CHECK(machine.rig.now_us - begin_us <= 1.5 * 160'000);
    }
  }
}

TEST_CASE("Who has no place gets one of those of a client that has most", "[scheduler][unit]") {
  SharedMachine machine(SharesOptions());
  machine.AddStreams(2, 64);  // all places
  machine.RunFor(200'000);
  const RequestId late = machine.Add(1, MakeRequest(10, 3, 1));
  const int64_t begin_us = machine.rig.now_us;
  while (!machine.rig.Of(late).finished) machine.Step();
  CHECK(machine.rig.now_us - begin_us <= 60'000);
  CHECK(machine.rig.scheduler.stats().preemptions == 1);
}

// Calls of one client, on a machine with 64 places: a call has few if it has four.
RequestId AddCall(SharedMachine* machine, int32_t n, int32_t max_tokens, uint64_t call = 0) {
  GenerationRequest request = MakeRequest(4, max_tokens, n);
  request.num_branches = n;
  request.call = call;
  return machine->Add(1, std::move(request));
}

int64_t TimeToEnd(SharedMachine* machine, RequestId id) {
  const int64_t begin_us = machine->rig.now_us;
  while (!machine->rig.Of(id).finished) machine->Step();
  return machine->rig.now_us - begin_us;
}

TEST_CASE("A small call waits for none that has many places or wants many", "[scheduler][unit]") {
  const auto policy = GENERATE(PolicyKind::kFcfs, PolicyKind::kPriority, PolicyKind::kDeadline,
                               PolicyKind::kFair, PolicyKind::kShortest);
  INFO(TraitsOf(policy).name);
  SharedMachine machine(SharesOptions(policy));
  SECTION("one request with all places") { AddCall(&machine, 64, 2000); }
  SECTION("a call of several requests") {
    for (int i = 0; i < 2; ++i) AddCall(&machine, 32, 2000, /*call=*/1000);
  }
  SECTION("several calls, of which some wait") {
    for (int i = 0; i < 5; ++i) AddCall(&machine, 30, 2000);
  }
  SECTION("a queue of one call") {
    for (int i = 0; i < 500; ++i) AddCall(&machine, 1, 2000, /*call=*/1000);
  }
  machine.RunFor(200'000);
  for (int i = 0; i < 5; ++i) {
    CHECK(TimeToEnd(&machine, AddCall(&machine, 1, 3)) <= 6 * 64 * 100);
    CHECK(TimeToEnd(&machine, AddCall(&machine, 4, 3)) <= 8 * 64 * 100);
  }
  CHECK(machine.rig.scheduler.stats().preemptions <= 5 * (1 + 4));
  CHECK(machine.rig.scheduler.CheckIntegrity().ok());
}

TEST_CASE("A small call gets pages of one that has many, and keeps them", "[scheduler][unit]") {
  SchedulerOptions options = SharesOptions();
  options.num_pages = 200;  // 3,200 positions
  SharedMachine machine(options);
  const RequestId large = AddCall(&machine, 12, 1000);
  const RequestId queued = AddCall(&machine, 12, 1000);
  while (machine.rig.scheduler.stats().preemptions == 0) machine.Step();
  // It waits for none of the large call's 24,000 tokens, which take 2.4 s. It is preempted
  // only where the page is for the large call's last branch, behind which there is nobody else.
  RequestId small{};
  int preempted = 0;
  machine.rig.on_plan = [&] {
    for (const StepNote& note : machine.rig.scheduler.notes()) {
      preempted += note.request == small && note.kind == StepNote::Kind::kPreempted ? 1 : 0;
    }
  };
  for (int i = 0; i < 5; ++i) {
    machine.RunFor(20'000);
    small = AddCall(&machine, 1, 40);
    CHECK(TimeToEnd(&machine, small) <= 120'000);
  }
  CHECK(preempted <= 1);
  machine.rig.RunAll();
  for (const RequestId id : {large, queued}) {
    for (int32_t b = 0; b < 12; ++b) CHECK(machine.rig.Of(id, b).tokens.size() == 1000);
  }
}

TEST_CASE("Priorities go before the size of a call", "[scheduler][unit]") {
  SharedMachine machine(SharesOptions(PolicyKind::kPriority));
  AddCall(&machine, 64, 2000);  // of priority 0
  machine.RunFor(100'000);
  GenerationRequest request = MakeRequest(4, 3, 1);
  request.priority = 1;
  const RequestId late = machine.Add(1, std::move(request));
  machine.RunFor(1'000'000);
  CHECK_FALSE(machine.rig.Of(late).finished);
  CHECK(machine.rig.scheduler.stats().preemptions == 0);
}

TEST_CASE("Small calls take no places from each other", "[scheduler][unit]") {
  SharedMachine machine(SharesOptions());
  for (int i = 0; i < 16; ++i) AddCall(&machine, 4, 300);
  for (int i = 0; i < 16; ++i) AddCall(&machine, 4, 300, 1000 + static_cast<uint64_t>(i / 2));
  machine.rig.RunAll();
  CHECK(machine.rig.scheduler.stats().preemptions == 0);
}

TEST_CASE("A call that wants many places gets them when it is overdue", "[scheduler][unit]") {
  SchedulerOptions options = SharesOptions();
  options.starvation_us = 500'000;
  SharedMachine machine(options);
  const RequestId large = AddCall(&machine, 64, 1000);
  machine.RunFor(100'000);
  const RequestId next = AddCall(&machine, 40, 100);
  // There is always a small call that waits.
  for (int i = 0; i < 100; ++i) AddCall(&machine, 1, 2000);
  CHECK(TimeToEnd(&machine, next) <= 500'000 + 110 * 64 * 100);
  machine.rig.RunAll();
  for (int32_t b = 0; b < 64; ++b) CHECK(machine.rig.Of(large, b).tokens.size() == 1000);
}

TEST_CASE("However small its weight, a client runs once in the starvation limit",
          "[scheduler][unit]") {
  SchedulerOptions options = SharesOptions();
  options.starvation_us = 100'000;
  SharedMachine machine(options);
  machine.AddStreams(1, 8, /*weight=*/1000);
  machine.AddStreams(2, 8, /*weight=*/1);
  machine.RunFor(1'000'000);
  machine.RunFor(5'000'000);
  CHECK(machine.tokens[2] >= 8 * 49);
  CHECK(machine.tokens[1] >= 0.98 * (50'000 - machine.tokens[2]));
}

TEST_CASE("Clients are forgotten, those in debt last", "[scheduler][unit]") {
  SchedulerOptions options = SharesOptions();
  StepBudget budget(options);
  ClientShares shares(options, budget);
  bool is_new = false;
  const int32_t kept = shares.Enter(7, 1, &is_new);
  CHECK(is_new);
  int32_t largest = 0;
  for (uint64_t client = 1000; client < 200'000; ++client) {
    const int32_t number = shares.Enter(client, 1, &is_new);
    REQUIRE(is_new);
    largest = std::max(largest, number);
    shares.Leave(number);
  }
  CHECK(largest <= ClientShares::kMaxIdleClients + 1);
  CHECK(shares.Enter(7, 1, &is_new) == kept);
  CHECK_FALSE(is_new);
  CHECK(shares.num_live() == 1);
}

}  // namespace
}  // namespace heddle::scheduler
