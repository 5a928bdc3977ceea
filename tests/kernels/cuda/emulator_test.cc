// The emulator itself: it must find what it claims to find, and its matrix instructions must be
// those of the PTX specification.
#include "tests/emulate/emulator.h"

#include <functional>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {
namespace {

// Runs one block and returns what was found.
std::vector<std::string> Findings(int threads, int shared_bytes,
                                  const std::function<void()>& body) {
  emulate::TakeFindings();
  bool good = emulate::Launch({1, 1, 1}, threads, shared_bytes, body);
  std::vector<std::string> findings = emulate::TakeFindings();
  CHECK(good == findings.empty());
  return findings;
}

bool Mentions(const std::vector<std::string>& findings, const std::string& text) {
  for (const std::string& finding : findings) {
    if (finding.find(text) != std::string::npos) return true;
  }
  return false;
}

TEST_CASE("A neighbour's value read without a barrier is a race, with one it is not", "[emulate]") {
  auto body = [](bool barrier) {
    return [barrier] {
      Shared<int> values = SharedArena().Take<int>(64);
      values.Set(ThreadX(), ThreadX());
      if (barrier) SyncThreads();
      int neighbour = values.Get((ThreadX() + 1) % 64);
      if (barrier) CHECK(neighbour == (ThreadX() + 1) % 64);
    };
  };
  for (auto order : {emulate::Order::kForward, emulate::Order::kBackward}) {
    emulate::SetOrder(order);
    CHECK(Mentions(Findings(64, 256, body(false)), "race"));
    CHECK(Findings(64, 256, body(true)).empty());
  }
  emulate::SetOrder(emulate::Order::kForward);
}

TEST_CASE("Overwriting what others may still read is a race", "[emulate]") {
  CHECK(Mentions(Findings(64, 256,
                          [] {
                            Shared<int> values = SharedArena().Take<int>(64);
                            values.Set(ThreadX(), 1);
                            SyncThreads();
                            values.Get(63 - ThreadX());
                            values.Set(ThreadX(), 2);
                          }),
                 "race"));
}

TEST_CASE("A warp's barrier orders the warp, and nobody else", "[emulate]") {
  auto body = [](int distance) {
    return [distance] {
      Shared<int> values = SharedArena().Take<int>(64);
      values.Set(ThreadX(), ThreadX());
      SyncWarp();
      values.Get((ThreadX() + distance) % 64);
    };
  };
  CHECK(Findings(64, 256, [] {
          Shared<int> values = SharedArena().Take<int>(64);
          values.Set(ThreadX(), ThreadX());
          SyncWarp();
          CHECK(values.Get(ThreadX() ^ 1) == (ThreadX() ^ 1));
        }).empty());
  CHECK(Mentions(Findings(64, 256, body(32)), "race"));
  CHECK(Findings(32, 128,
                 [] {  // a value may change hands from barrier to barrier
                   Shared<int> values = SharedArena().Take<int>(32);
                   values.Set(Lane(), 0);
                   for (int i = 0; i < 3; ++i) {
                     SyncWarp();
                     const int mine = (Lane() + i) % 32;
                     values.Set(mine, values.Get(mine) + 1);
                   }
                 })
            .empty());
}

TEST_CASE("Atomic additions of all threads do not race with each other", "[emulate]") {
  CHECK(Findings(64, 16, [] {
          Shared<uint32_t> count = SharedArena().Take<uint32_t>(1);
          if (ThreadX() == 0) count.Set(0, 0);
          SyncThreads();
          count.AtomicAdd(0, 2u);
          SyncThreads();
          CHECK(count.Get(0) == 128);
        }).empty());
}

TEST_CASE("Indices outside of an array and values that nothing wrote are found", "[emulate]") {
  CHECK(Mentions(Findings(32, 64,
                          [] {
                            SharedArena arena;
                            Shared<int> first = arena.Take<int>(4);
                            arena.Take<int>(4);
                            first.Set(ThreadX() == 0 ? 4 : 3, 0);
                          }),
                 "outside of its array"));
  CHECK(Mentions(Findings(32, 16, [] { SharedArena().Take<int>(8).Set(7, 0); }),
                 "of 16 bytes of shared memory"));
  CHECK(Mentions(Findings(32, 16, [] { SharedArena().Take<int>(4).Get(0); }), "nothing wrote"));
}

TEST_CASE("Threads that wait for one that never comes are found", "[emulate]") {
  CHECK(Mentions(Findings(64, 0,
                          [] {
                            if (ThreadX() != 5) SyncThreads();
                          }),
                 "63 of 64 threads wait"));
  CHECK(Mentions(Findings(32, 0,
                          [] {
                            if (ThreadX() < 16) {
                              Ballot(true);
                            } else {
                              ShuffleXor(1.0f, 1);
                            }
                          }),
                 "lanes of one warp meet in"));
  // The next launch is not disturbed.
  CHECK(Findings(64, 0, [] { SyncThreads(); }).empty());
}

TEST_CASE("An asynchronous copy is there after its wait and not before", "[emulate]") {
  alignas(16) static const float source[4] = {1, 2, 3, 4};
  auto body = [](bool wait) {
    return [wait] {
      Shared<float> to = SharedArena().Take<float>(4);
      if (ThreadX() == 0) {
        CopyAsync16(to, 0, source, true);
        CopyAsyncCommit();
        if (wait) CopyAsyncWait<0>();
        CHECK((to.Get(2) == 3.0f) == wait);
        if (!wait) CopyAsyncWait<0>();
      }
    };
  };
  CHECK(Findings(32, 16, body(true)).empty());
  Findings(32, 16, body(false));
  CHECK(Mentions(Findings(32, 16,
                          [] {
                            if (ThreadX() > 0) return;
                            CopyAsync16(SharedArena().Take<float>(4), 0, source, true);
                            CopyAsyncCommit();
                          }),
                 "never waited for"));
}

TEST_CASE("Shuffles and ballots follow the lanes", "[emulate]") {
  CHECK(Findings(64, 0, [] {
          CHECK(ShuffleXor(Lane(), 5) == (Lane() ^ 5));
          CHECK(ShuffleUp(Lane(), 3) == (Lane() < 3 ? Lane() : Lane() - 3));
          CHECK(Shuffle(ThreadX(), 7) == WarpIndex() * 32 + 7);
          CHECK(Ballot(Lane() % 3 == 0) == 0x49249249u);
          CHECK(WarpSum(static_cast<float>(Lane())) == 496.0f);
          CHECK(WarpMax(static_cast<float>(-Lane())) == 0.0f);
        }).empty());
}

// Small integers are exact in BF16 and F16, and so are their sums in F32.
template <typename T>
void CheckMatrixProduct() {
  auto a_at = [](int r, int k) { return static_cast<float>((r * 7 + k * 3) % 11 - 5); };
  auto b_at = [](int k, int c) { return static_cast<float>((k * 5 + c * 2) % 13 - 6); };
  static float c_found[16][8];
  auto findings = Findings(32, 16 * 16 * 2 + 16 * 8 * 2, [&] {
    SharedArena arena;
    Shared<T> a_rows = arena.Take<T>(16 * 16);  // [16, 16]
    Shared<T> b_rows = arena.Take<T>(16 * 8);   // [16, 8]: transposed on its way
    for (int i = Lane(); i < 256; i += 32) a_rows.Set(i, RoundTo(a_at(i / 16, i % 16), T()));
    for (int i = Lane(); i < 128; i += 32) b_rows.Set(i, RoundTo(b_at(i / 8, i % 8), T()));
    SyncWarp();
    uint32_t a[4], b[4];
    LoadMatrix4(a, a_rows, Lane() % 16 * 16 + Lane() / 16 * 8);
    LoadMatrix4Transposed(b, b_rows, Lane() % 16 * 8);
    float c[4] = {1, 1, 1, 1};
    Mma16816(c, a, {b[0], b[1]}, T());
    for (int e = 0; e < 4; ++e) c_found[Lane() / 4 + e / 2 * 8][2 * (Lane() % 4) + e % 2] = c[e];
  });
  CHECK(findings.empty());
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 8; ++c) {
      float expected = 1;
      for (int k = 0; k < 16; ++k) expected += a_at(r, k) * b_at(k, c);
      CHECK(c_found[r][c] == expected);
    }
  }
}

TEST_CASE("Matrix loads and the matrix product agree with plain loops", "[emulate]") {
  CheckMatrixProduct<BFloat16>();
  CheckMatrixProduct<Half>();
}

}  // namespace
}  // namespace heddle::kernels::cuda
