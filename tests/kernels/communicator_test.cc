// Ranks that are threads of this process: what they exchange, and that nobody waits for ever.
#include "kernels/communicator.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "catch2/catch.hpp"

namespace heddle::kernels {
namespace {

// Runs body(communicator) on a thread for each rank; true if it returned true on all.
bool OnRanks(int32_t world, const std::function<bool(Communicator&)>& body) {
  std::vector<std::unique_ptr<Communicator>> ranks = MakeLocalCommunicators(world);
  std::atomic<int32_t> succeeded{0};
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&, own = rank.get()] { succeeded += body(*own) ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  return succeeded == world;
}

TEST_CASE("Every rank sees every rank's part, round after round", "[unit]") {
  const int32_t world = GENERATE(1, 2, 3, 8);
  CHECK(OnRanks(world, [world](Communicator& own) {
    uint64_t part[2] = {};  // in turns: the last one may still be read
    for (uint64_t round = 0; round < 2000; ++round) {
      part[round % 2] = 1000 * round + static_cast<uint64_t>(own.rank());
      const void* parts[kMaxRanks];
      if (!own.Exchange(&part[round % 2], sizeof(uint64_t), sizeof(uint64_t), parts)) return false;
      for (int32_t r = 0; r < world; ++r) {
        const auto seen = *static_cast<const uint64_t*>(parts[r]);
        if (seen != 1000 * round + static_cast<uint64_t>(r)) return false;
      }
    }
    return own.Barrier();  // the last parts are on the ranks' stacks
  }));
}

TEST_CASE("An exchange that has begun ends later, behind others", "[unit]") {
  const int32_t world = GENERATE(1, 2, 3, 8);
  CHECK(OnRanks(world, [world](Communicator& own) {
    uint64_t begun[4] = {};  // in turns: a part is free when two that began later have ended
    uint64_t at_once = 0;
    const auto end = [&](uint64_t round) {
      const void* parts[kMaxRanks];
      if (!own.EndExchange(parts)) return false;
      for (int32_t r = 0; r < world; ++r) {
        const auto seen = *static_cast<const uint64_t*>(parts[r]);
        if (seen != 1000 * round + static_cast<uint64_t>(r)) return false;
      }
      return true;
    };
    constexpr uint64_t kRounds = 2000;
    for (uint64_t round = 0; round < kRounds; ++round) {
      begun[round % 4] = 1000 * round + static_cast<uint64_t>(own.rank());
      if (!own.BeginExchange(&begun[round % 4], sizeof(uint64_t), sizeof(uint64_t))) return false;
      // Some ranks are late, now and then.
      if (round % 97 == static_cast<uint64_t>(own.rank())) std::this_thread::yield();
      if (round % 5 == 0) {
        at_once = round;
        const void* parts[kMaxRanks];
        if (!own.Exchange(&at_once, sizeof(uint64_t), sizeof(uint64_t), parts)) return false;
        if (*static_cast<const uint64_t*>(parts[world - 1]) != round || !own.Barrier())
          return false;
      }
      if (round > 0 && !end(round - 1)) return false;
    }
    return end(kRounds - 1) && own.Barrier();
  }));
}

TEST_CASE("Nobody waits where an exchange begins", "[unit]") {
  std::vector<std::unique_ptr<Communicator>> ranks = MakeLocalCommunicators(2);
  const int32_t values[] = {3, 4};
  const void* parts[2] = {};
  for (const auto& rank : ranks) {  // on one thread: rank 1 comes when rank 0 has begun
    CHECK(rank->BeginExchange(&values[rank->rank()], sizeof(int32_t), sizeof(int32_t)));
    CHECK(rank->BeginExchange(nullptr, 0, sizeof(int32_t)));
  }
  CHECK(ranks[0]->EndExchange(parts));
  CHECK(parts[0] == &values[0]);
  CHECK(parts[1] == &values[1]);
  CHECK(ranks[0]->EndExchange(parts));
  CHECK(parts[1] == nullptr);
  CHECK(ranks[0]->BeginExchange(nullptr, 0, sizeof(int32_t)));
  ranks[1]->Abort(absl::UnavailableError("rank 1 has lost its weights"));
  CHECK(!ranks[0]->EndExchange(parts));
  CHECK(!ranks[1]->EndExchange(parts));
}

TEST_CASE("A rank may have no part", "[unit]") {
  CHECK(OnRanks(3, [](Communicator& own) {
    const int value = own.rank();
    const void* parts[kMaxRanks];
    if (!own.Exchange(own.rank() == 1 ? nullptr : &value, sizeof(value), sizeof(value), parts))
      return false;
    return parts[1] == nullptr && *static_cast<const int*>(parts[2]) == 2 && own.Barrier();
  }));
}

TEST_CASE("Parts are gathered, dealt out and broadcast in the order of ranks", "[unit]") {
  const int32_t world = GENERATE(1, 2, 5);
  CHECK(OnRanks(world, [world](Communicator& own) {
    const auto n = static_cast<size_t>(world);
    const int32_t rank = own.rank();
    std::vector<int32_t> gathered(n), received(n), to_all(n);
    int32_t part = 10 * rank;
    for (size_t r = 0; r < n; ++r) to_all[r] = 100 * rank + static_cast<int32_t>(r);
    int32_t word = rank == world - 1 ? 77 : 0;
    bool ok = own.AllGather(&part, gathered.data(), sizeof(part));
    part = -1;  // buffers are free on return
    ok = ok && own.AllToAll(to_all.data(), received.data(), sizeof(int32_t));
    ok = ok && own.Broadcast(&word, sizeof(word), world - 1) && word == 77;
    for (int32_t r = 0; r < world; ++r) {
      ok = ok && gathered[static_cast<size_t>(r)] == 10 * r &&
           received[static_cast<size_t>(r)] == 100 * r + rank;
    }
    return ok;
  }));
}

TEST_CASE("Messages of a pair arrive in order", "[unit]") {
  CHECK(OnRanks(3, [](Communicator& own) {
    constexpr int32_t kMessages = 500;
    // Around a ring: rank 0 begins, so that nobody waits in a circle.
    const int32_t next = (own.rank() + 1) % 3;
    const int32_t before = (own.rank() + 2) % 3;
    for (int32_t i = 0; i < kMessages; ++i) {
      int32_t value = i;
      if (own.rank() == 0 && !own.Send(&value, sizeof(value), next)) return false;
      if (!own.Recv(&value, sizeof(value), before)) return false;
      if (value != i + (own.rank() == 0 ? 2 : own.rank() - 1)) return false;
      ++value;
      if (own.rank() != 0 && !own.Send(&value, sizeof(value), next)) return false;
    }
    return true;
  }));
}

TEST_CASE("Posted messages wait for their receiver, who gets them in order", "[unit]") {
  const int32_t world = GENERATE(2, 3, 5);
  CHECK(OnRanks(world, [world](Communicator& own) {
    const int32_t places = world + 2;
    std::vector<int32_t> values(static_cast<size_t>(places));
    for (int32_t round = 0; round < 300; ++round) {
      std::iota(values.begin(), values.end(), 100 * round);
      if (own.rank() == 0) {
        // Nobody receives before all are posted.
        for (const int32_t& value : values) {
          if (!own.Post(&value, sizeof(value), world - 1)) return false;
        }
      }
      if (!own.Barrier()) return false;
      for (int32_t i = 0; own.rank() == world - 1 && i < places; ++i) {
        int32_t value = -1;
        if (!own.Recv(&value, sizeof(value), 0) || value != 100 * round + i) return false;
      }
      if (!own.Barrier()) return false;  // the values may change
    }
    return true;
  }));
}

TEST_CASE("An abort wakes everyone who waits and stays", "[unit]") {
  std::vector<std::unique_ptr<Communicator>> ranks = MakeLocalCommunicators(4);
  std::atomic<int32_t> woken{0};
  std::vector<std::thread> threads;
  // Rank 3 never comes.
  threads.emplace_back([&] { woken += ranks[0]->Barrier() ? 0 : 1; });
  threads.emplace_back([&] {
    int value = 0;
    woken += ranks[1]->Recv(&value, sizeof(value), 3) ? 0 : 1;
  });
  threads.emplace_back([&] {
    const int value = 0;
    woken += ranks[2]->Send(&value, sizeof(value), 3) ? 0 : 1;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // let them fall asleep
  ranks[3]->Abort(absl::UnavailableError("rank 3 has lost its weights"));
  for (std::thread& thread : threads) thread.join();
  CHECK(woken == 3);
  const int value = 0;
  bool posted = true;
  for (int i = 0; i < 20 && posted; ++i) posted = ranks[0]->Post(&value, sizeof(value), 3);
  CHECK(!posted);
  ranks[0]->Abort(absl::InternalError("later"));
  for (auto& rank : ranks) {
    CHECK(rank->status().message() == "rank 3 has lost its weights");
    CHECK(!rank->Barrier());
  }
}

TEST_CASE("Many more ranks than processors meet in reasonable time", "[unit]") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK(OnRanks(32, [](Communicator& own) {
    for (int i = 0; i < 200; ++i) {
      if (!own.Barrier()) return false;
    }
    return true;
  }));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  CHECK(took.count() < 60);  // 200 meetings of 32; spinning alone would take minutes
}

}  // namespace
}  // namespace heddle::kernels
