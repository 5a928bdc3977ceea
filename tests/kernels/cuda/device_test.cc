// The emulated CUDA device as a whole: graphs, limits, faults, and machines that cannot be used.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/emulate/machine.h"
#include "kernels/cuda/graph_cache.h"
#include "kernels/cuda/params.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/tape.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

using cuda::emulate::Machine;
using cuda::emulate::SetMachine;

// Sets a machine for the rest of a test.
struct OnMachine {
  explicit OnMachine(const Machine& machine) { SetMachine(machine); }
  ~OnMachine() { SetMachine({}); }
  OnMachine(const OnMachine&) = delete;
  OnMachine& operator=(const OnMachine&) = delete;
};

absl::Status Opening(const Machine& machine, int32_t ordinal = 0) {
  OnMachine on(machine);
  return CreateCudaDevice({.ordinal = ordinal}).status();
}

TEST_CASE("A machine that cannot be used is described with what to do", "[cuda]") {
  CHECK(Opening({.driver = 0}) ==
        absl::FailedPreconditionError("no NVIDIA driver was found on this machine (libcuda.so.1); "
                                      "install one, or run with --device cpu"));
  CHECK(Opening({.driver = 12040}) ==
        absl::FailedPreconditionError(
            "the NVIDIA driver supports CUDA up to 12.4, and this heddle was built with CUDA 13.0; "
            "update the driver, or build with an older toolkit"));
  CHECK(Opening({}, 3) == absl::NotFoundError("cuda:3 does not exist; this process sees 1 CUDA "
                                              "device; valid is cuda:0"));
  CHECK(Opening({.device_count = 4}, 4) ==
        absl::NotFoundError("cuda:4 does not exist; this process sees 4 CUDA devices; valid are "
                            "cuda:0 to cuda:3"));
  CHECK(Opening({.device_count = 0}) ==
        absl::NotFoundError("cuda:0 does not exist; this process sees 0 CUDA devices; "
                            "CUDA_VISIBLE_DEVICES may hide them"));
  CHECK(Opening({.compute_major = 7}) ==
        absl::UnimplementedError("cuda:0 (emulated) has compute capability 7.0; heddle needs 8.0 "
                                 "(Ampere) or later"));
}

TEST_CASE("A GPU whose memory others hold is refused with who holds how much", "[cuda]") {
  const absl::Status status =
      Opening({.total_bytes = int64_t{8} << 30, .taken_bytes = (int64_t{8} << 30) - (64 << 20)});
  CHECK(absl::IsResourceExhausted(status));
  CHECK(status.message() ==
        "cuda:0 (emulated) is out of memory: 0.25 GiB wanted, 0.06 GiB free of 8.00 GiB, 0.19 GiB "
        "short; this process holds 0.00 GiB, other processes and the driver 7.94 GiB. Use a "
        "smaller model or weight format, fewer KV pages, or a GPU of one's own.");
}

TEST_CASE("After a fault in a kernel every call of the device fails", "[cuda]") {
  auto device = EmulatedDevice(DType::kF32);
  Matrix values(2, 8);
  auto scale = [&] {
    return device->Run([&](Ops& ops) { ops.ScaleLogits(values.tensor(), 2.0f, 0.0f); });
  };
  OnMachine on({.launches_before_fault = 1});
  CHECK(scale().ok());
  const absl::Status fault = scale();
  CHECK(absl::IsUnavailable(fault));
  CHECK(fault.message() ==
        "cuda:0 (emulated) failed while running a step: an illegal memory access was encountered "
        "(700)");
  CHECK(absl::IsUnavailable(scale()));
  CHECK(absl::IsUnavailable(device->Allocate(64).status()));
  float number = 1;
  CHECK(absl::IsUnavailable(device->Upload(values.at(0, 0), &number, 4)));
}

TEST_CASE("Limits are measured in the workspace", "[cuda]") {
  auto device = EmulatedDevice(DType::kBF16, /*workspace_bytes=*/64 << 10);
  const auto limits = device->MeasureLimits();
  REQUIRE(limits.ok());
  CHECK(limits->read_gb_s > 0);
  CHECK(limits->gops > 0);
}

TEST_CASE("A graph follows its tapes in shapes and parameters", "[cuda]") {
  auto runtime = *cuda::Runtime::Open(0);
  cuda::GraphCache graphs(*runtime);
  auto play = [&](std::vector<Tensor> tensors, float factor) {
    cuda::Tape tape;
    runtime->set_tape(&tape);
    for (const Tensor& tensor : tensors) {
      CHECK(cuda::LaunchScaleLogits(tensor, factor, 0.0f, runtime->stream()) == cuda::kSuccess);
    }
    runtime->set_tape(nullptr);
    CHECK(tape.launches().size() == tensors.size());
    REQUIRE(graphs.Play(tape, 7).ok());
  };
  Matrix a(1, 3), b(2, 600);
  auto reset = [&] {
    *a.at(0, 2) = 1;
    *b.at(1, 599) = 1;
  };
  reset();
  play({a.tensor(), b.tensor()}, 2);  // directly
  CHECK(a(0, 2) == 2);
  CHECK(b(1, 599) == 2);
  play({a.tensor(), b.tensor()}, 2);  // the graph is made
  CHECK(b(1, 599) == 4);
  play({a.tensor(), b.tensor()}, 2);  // as it is
  CHECK(b(1, 599) == 8);
  CHECK(graphs.counts().changed == 0);
  reset();
  play({b.tensor(), a.tensor()}, 3);  // other grids, other parameters
  CHECK(a(0, 2) == 3);
  CHECK(b(1, 599) == 3);
  CHECK(graphs.counts().changed == 2);
  play({b.rows(1, 2), a.tensor()}, 3);  // one launch differs
  CHECK(b(1, 599) == 9);
  CHECK(graphs.counts().changed == 3);
  play({a.tensor()}, 3);  // other kernels: not this graph
  CHECK(graphs.counts().direct == 2);
  CHECK(graphs.counts().made == 1);
  CHECK(graphs.counts().replayed == 3);
}

TEST_CASE("More mixtures of kernels than there are graphs for still run", "[cuda]") {
  auto runtime = *cuda::Runtime::Open(0);
  cuda::GraphCache graphs(*runtime);
  Matrix a(1, 4);
  for (int round = 0; round < 2; ++round) {
    for (int32_t rows = 0; rows < 70; ++rows) {
      *a.at(0, 0) = 1;
      cuda::Tape tape;
      runtime->set_tape(&tape);
      CHECK(cuda::LaunchScaleLogits(a.tensor(), 2, 0, runtime->stream()) == cuda::kSuccess);
      runtime->set_tape(nullptr);
      REQUIRE(graphs.Play(tape, rows).ok());
      CHECK(a(0, 0) == 2);
    }
  }
  CHECK(graphs.counts().direct == 140);  // each was forgotten before it came again
}

// Decoding steps of three sequences whose contexts grow, on one device; the outputs of all.
std::vector<float> DecodeSteps(bool graphs) {
  auto device = *CreateCudaDevice(
      {.activations = DType::kBF16, .workspace_bytes = int64_t{4} << 20, .graphs = graphs});
  Random random(5);
  const TestWeight weight = MakeWeight(random, DType::kQ4_K, 256, 256);
  const WeightSource source = weight.source();
  auto packed = *device->Pack({&source, 1});
  Matrix x = Matrix::RandomOf(random, 3, 256);
  std::vector<float> all;
  for (int32_t step = 0; step < 5; ++step) {
    TestBatch batch({{{1, 300 + 50 * step}, {1, 20 + step}, {1, 9}}, 16});
    TestCache cache(DType::kF16, batch.num_pages, 16, 2, 64, 1);
    Matrix zeros(3, 256);
    Activations in(DType::kBF16, x), q(DType::kBF16, zeros), out(DType::kBF16, zeros);
    REQUIRE(device->Plan(batch.view()).ok());
    AttentionArgs attention;
    attention.q = q.tensor();
    attention.n_heads = 4;
    attention.cache = cache.view;
    attention.scale = 0.125f;
    attention.out = out.tensor();
    MustRun(*device, [&](Ops& ops) {
      ops.Norm({.x = in.tensor(), .residual = {}, .out = in.tensor()});
      ops.Linear({.x = in.tensor(), .weight = packed.get(), .out = q.tensor()});
      ops.Attention(attention);
    });
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 0; c < 256; ++c) all.push_back(out(r, c));
    }
  }
  return all;
}

TEST_CASE("Steps replayed as graphs give the bits of steps launched directly", "[cuda]") {
  CHECK(DecodeSteps(true) == DecodeSteps(false));
}

}  // namespace
}  // namespace heddle::kernels::test
