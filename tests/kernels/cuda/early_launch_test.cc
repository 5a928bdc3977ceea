// Launches that may begin before earlier ones have ended: kernels that keep the rules of
// primitives.cuh compute the same, and the emulator shows it if one does not keep them.
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/cuda/runtime/tape.h"
#include "tests/emulate/machine.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int kBlocks = 13;
constexpr int kThreads = 64;
constexpr int kValues = kBlocks * kThreads;

struct AddParams {
  const float* from = nullptr;  // [kValues]
  float* to = nullptr;          // [kValues]
};

HEDDLE_DEVICE int Mine() { return BlockX() * kThreads + ThreadX(); }
// An index of the next block, which another block of the previous kernel has written.
HEDDLE_DEVICE int Other() { return (Mine() + kThreads) % kValues; }

HEDDLE_KERNEL AddOne(HEDDLE_PARAMS(AddParams, p)) {
  StartInTurn();
  p.to[Mine()] = p.from[Other()] + 1;
}

HEDDLE_KERNEL ReadTooEarly(HEDDLE_PARAMS(AddParams, p)) {
  const float value = p.from[Other()];
  StartInTurn();
  p.to[Mine()] = value + 1;
}

HEDDLE_KERNEL WriteTooEarly(HEDDLE_PARAMS(AddParams, p)) {
  p.to[Mine()] = -1;
  StartInTurn();
}

// Half of the threads have work, and only they wait.
HEDDLE_KERNEL SomeDoNotWait(HEDDLE_PARAMS(AddParams, p)) {
  if (ThreadX() < 32) WaitForPrevious();
  p.to[Mine()] = p.from[Other()] + 1;
}

HEDDLE_KERNEL OneWaitsForAll(HEDDLE_PARAMS(AddParams, p)) {
  if (ThreadX() == 0) WaitForPrevious();
  SyncThreads();
  p.to[Mine()] = p.from[Other()] + 1;
}

HEDDLE_KERNEL LastBlockEndsAtOnce(HEDDLE_PARAMS(AddParams, p)) {
  if (BlockX() == kBlocks - 1) return;
  StartInTurn();
  p.to[Mine()] = p.from[Other()] + 1;
}

using Kernel = void (*)(AddParams);

class Bench {
 public:
  explicit Bench(int compute_major = 9) {
    emulate::SetMachine({.compute_major = compute_major});
    runtime_ = *Runtime::Open(0);
    std::iota(values_[0].begin(), values_[0].end(), 0.0f);
  }
  ~Bench() {
    runtime_.reset();
    emulate::SetMachine({});
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Runtime& runtime() { return *runtime_; }
  std::vector<float>& values(int i) { return values_[i]; }
  // Launches `kernel` from values `from` to values `to`.
  void Launch(Kernel kernel, int from, int to, int lane = 0) {
    const LaunchShape shape = {.grid_x = kBlocks, .threads = kThreads};
    const AddParams params = {values_[from].data(), values_[to].data()};
    REQUIRE(cuda::Launch(kernel, shape, runtime_->stream(lane), params) == kSuccess);
  }
  // Whether values i are those of 0, `steps` blocks on, plus `steps`.
  bool Has(int i, int steps) {
    bool all = true;
    for (int v = 0; v < kValues; ++v) {
      const int from = (v + steps * kThreads) % kValues;
      all = all && values_[i][v] == static_cast<float>(from + steps);
    }
    return all;
  }
  std::string Synchronize() {
    const absl::Status status = runtime_->Synchronize();
    return status.ok() ? "" : std::string(status.message());
  }

 private:
  std::unique_ptr<Runtime> runtime_;
  std::vector<float> values_[4] = {std::vector<float>(kValues), std::vector<float>(kValues),
                                   std::vector<float>(kValues), std::vector<float>(kValues)};
};

TEST_CASE("Kernels that wait for the ones before compute as if they came after them", "[emulate]") {
  for (Kernel kernel : {AddOne, OneWaitsForAll}) {
    Bench bench;
    // To and fro: what one writes the one before has read.
    bench.Launch(kernel, 0, 1);
    bench.Launch(kernel, 1, 2);
    bench.Launch(kernel, 2, 1);
    bench.Launch(kernel, 1, 2);
    bench.Launch(kernel, 2, 3);
    CHECK(bench.Synchronize() == "");
    CHECK(bench.Has(3, 5));
  }
}

TEST_CASE("A read before the wait shows in the numbers", "[emulate]") {
  for (Kernel kernel : {ReadTooEarly, SomeDoNotWait}) {
    Bench bench;
    bench.Launch(AddOne, 0, 1);
    bench.Launch(kernel, 1, 2);
    CHECK(bench.Synchronize() == "");
    CHECK_FALSE(bench.Has(2, 2));
  }
}

TEST_CASE("A read before the wait of what an earlier launch than the last writes shows, too",
          "[emulate]") {
  Bench bench;
  bench.Launch(AddOne, 0, 1);
  bench.Launch(AddOne, 0, 3);
  bench.Launch(ReadTooEarly, 1, 2);
  CHECK(bench.Synchronize() == "");
  CHECK_FALSE(bench.Has(2, 2));
}

TEST_CASE("A write before the wait shows in what earlier launches read, or is lost", "[emulate]") {
  Bench read;
  read.Launch(AddOne, 0, 1);
  read.Launch(WriteTooEarly, 1, 0);
  CHECK(read.Synchronize() == "");
  CHECK_FALSE(read.Has(1, 1));
  Bench written;
  written.Launch(AddOne, 0, 1);
  written.Launch(AddOne, 1, 2);
  written.Launch(WriteTooEarly, 2, 1);
  CHECK(written.Synchronize() == "");
  CHECK(written.values(1) != std::vector<float>(kValues, -1.0f));
}

TEST_CASE("A block that ends without waiting is found", "[emulate]") {
  Bench bench;
  bench.Launch(AddOne, 0, 1);
  bench.Launch(LastBlockEndsAtOnce, 1, 2);
  CHECK(bench.Synchronize().find("block (12,0,0) thread 63 ended without waiting for the launches "
                                 "before") != std::string::npos);
}

TEST_CASE("A launch begins in its turn after a copy, a join of lanes, and on older devices",
          "[emulate]") {
  {
    Bench bench;
    bench.Launch(AddOne, 0, 1);
    REQUIRE(bench.runtime()
                .CopyOnDevice(bench.values(3).data(), bench.values(1).data(),
                              kValues * static_cast<int64_t>(sizeof(float)))
                .ok());
    bench.Launch(ReadTooEarly, 3, 2);
    CHECK(bench.Synchronize() == "");
    CHECK(bench.Has(2, 2));
  }
  for (const bool taped : {false, true}) {
    Bench bench;
    Tape tape;
    if (taped) bench.runtime().set_tape(&tape);
    bench.Launch(AddOne, 0, 3, /*lane=*/1);
    bench.Launch(AddOne, 0, 1);
    REQUIRE(bench.runtime().Signal(0).ok());
    REQUIRE(bench.runtime().Wait(1, 0).ok());
    bench.Launch(ReadTooEarly, 1, 2, /*lane=*/1);
    bench.Launch(AddOne, 2, 3, /*lane=*/1);
    bench.runtime().set_tape(nullptr);
    if (taped) {
      CHECK_FALSE(tape.launches()[0].shape.early);  // nothing is before it
      CHECK_FALSE(tape.launches()[2].shape.early);
      CHECK(tape.launches()[3].shape.early);
      REQUIRE(bench.runtime().LaunchAll(tape).ok());
    }
    CHECK(bench.Synchronize() == "");
    CHECK(bench.Has(3, 3));
  }
  Bench older(8);
  older.Launch(AddOne, 0, 1);
  older.Launch(ReadTooEarly, 1, 2);
  CHECK(older.Synchronize() == "");
  CHECK(older.Has(2, 2));
}

}  // namespace
}  // namespace heddle::kernels::cuda
