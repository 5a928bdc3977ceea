#include "scheduler/catch_up.h"

#include <numeric>
#include <vector>

#include "catch2/catch.hpp"

namespace heddle::scheduler {
namespace {

// Asks about all sequences once, takes what it may from `unseen`, and returns how much that is.
size_t Ask(CatchUp* catch_up, std::vector<size_t>* unseen) {
  const size_t first = catch_up->Begin(unseen->size());
  size_t taken = 0;
  for (size_t turn = 0; turn < unseen->size(); ++turn) {
    const size_t i = (first + turn) % unseen->size();
    const size_t count = catch_up->Take(i, (*unseen)[i]);
    REQUIRE(count <= (*unseen)[i]);
    (*unseen)[i] -= count;
    taken += count;
  }
  return taken;
}

TEST_CASE("What a few steps bring is taken whole, for any number of sequences", "[speculation]") {
  CatchUp catch_up;
  std::vector<size_t> unseen(1000, 10);
  CHECK(Ask(&catch_up, &unseen) == 10000);
}

TEST_CASE("A question after a pause takes a bounded number of tokens, however long the pause was",
          "[speculation]") {
  for (const size_t pause : {100, 10000, 1000000}) {
    CatchUp catch_up;
    std::vector<size_t> unseen(64, pause);
    CHECK(Ask(&catch_up, &unseen) <= 2048);
  }
}

TEST_CASE("Every sequence has its turn, though pauses bring more than a question takes",
          "[speculation]") {
  CatchUp catch_up;
  std::vector<size_t> unseen(64, 0);
  std::vector<int> up_to_date(64, 0);
  for (int pause = 0; pause < 640; ++pause) {
    for (size_t& tokens : unseen) tokens += 100;
    Ask(&catch_up, &unseen);
    for (size_t i = 0; i < unseen.size(); ++i) up_to_date[i] += unseen[i] == 0 ? 1 : 0;
  }
  for (const int times : up_to_date) CHECK(times > 0);
}

TEST_CASE("Questions without a pause take up everything in the end", "[speculation]") {
  CatchUp catch_up;
  std::vector<size_t> unseen(64, 500);
  int questions = 0;
  while (std::accumulate(unseen.begin(), unseen.end(), size_t{0}) > 64) {
    for (size_t& tokens : unseen) ++tokens;
    Ask(&catch_up, &unseen);
    REQUIRE(++questions < 64);
  }
}

TEST_CASE("New sequences are taken whole, the first one whatever its length", "[speculation]") {
  CatchUp catch_up;
  catch_up.Begin(3);
  CHECK(catch_up.TakeNew(0, 100000));
  CHECK_FALSE(catch_up.TakeNew(1, 300));
  CHECK_FALSE(catch_up.TakeNew(2, 300));
  CHECK(catch_up.Begin(3) == 1);
  CHECK(catch_up.TakeNew(1, 300));
  CHECK(catch_up.TakeNew(2, 300));
  CHECK(catch_up.Take(0, 5000) < 1024);
}

// Sequences end and others take their places.
TEST_CASE("The turn begins anew when it would begin behind the last sequence", "[speculation]") {
  CatchUp catch_up;
  std::vector<size_t> unseen(8, 1000);
  Ask(&catch_up, &unseen);
  CHECK(catch_up.Begin(8) > 0);
  CHECK(catch_up.Begin(1) == 0);
  CHECK(catch_up.Begin(0) == 0);
}

}  // namespace
}  // namespace heddle::scheduler
