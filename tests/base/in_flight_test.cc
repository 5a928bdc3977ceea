#include "base/in_flight.h"

#include <vector>

#include "catch2/catch.hpp"

namespace heddle::base {
namespace {

TEST_CASE("What is in flight ends in the order in which it began, round and round", "[unit]") {
  for (const int depth : {1, 2, 3, 5}) {
    InFlight<int> ring(depth);
    CHECK(ring.depth() == depth);
    int begun = 0, ended = 0;
    for (int round = 0; round < 4 * depth; ++round) {
      while (!ring.full()) {
        ring.next() = begun++;
        ring.Push();
      }
      CHECK(ring.size() == depth);
      CHECK(ring.newest() == begun - 1);
      for (int i = 0; i < ring.size(); ++i) CHECK(ring[i] == ended + i);
      for (int i = 0; i < 1 + round % depth; ++i) {
        CHECK(ring.oldest() == ended++);
        ring.Pop();
      }
      CHECK(ring.size() == begun - ended);
    }
  }
}

TEST_CASE("A place keeps its memory until it is used again", "[unit]") {
  InFlight<std::vector<int>> ring(2);
  ring.next().assign(100, 1);
  const int* const memory = ring.next().data();
  ring.Push();
  std::vector<int>& oldest = ring.oldest();
  ring.Pop();
  CHECK(oldest.data() == memory);  // what was ended may still be read
  CHECK(ring.next().data() != memory);
  for (int i = 0; i < 2; ++i) {
    ring.Push();
    ring.Pop();
  }
  CHECK(ring.next().data() == memory);  // three places: its turn again
  CHECK(ring.next().size() == 100);
}

TEST_CASE("A full ring still has a place to prepare what comes next in", "[unit]") {
  InFlight<int> ring(1);
  ring.next() = 1;
  ring.Push();
  ring.next() = 2;
  CHECK(ring.oldest() == 1);
  ring.Pop();
  ring.Push();
  CHECK(ring.oldest() == 2);
  ring.Clear();
  CHECK(ring.empty());
}

}  // namespace
}  // namespace heddle::base
