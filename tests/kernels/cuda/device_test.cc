// The emulated CUDA device as a whole: graphs, limits, faults, and machines that cannot be used.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/rows/row_params.h"
#include "kernels/cuda/runtime/graph_cache.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/cuda/runtime/tape.h"
#include "tests/emulate/machine.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/cuda/on_machine.h"

namespace heddle::kernels::test {
namespace {

using cuda::emulate::Machine;

absl::Status Opening(const Machine& machine, int32_t ordinal = 0) {
  OnMachine on(machine);
  return CreateCudaDevice({.ordinal = ordinal}).status();
}

TEST_CASE("A machine that cannot be used is described with what to do", "[cuda]") {
  CHECK(Opening({.driver = 0}) ==
        absl::FailedPreconditionError("no NVIDIA driver was found on this machine (libcuda.so.1); "
                                      "install one, give the container its GPUs (docker run "
                                      "--gpus all), or run with --device cpu"));
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
  CHECK(Opening({.compute_major = 12, .has_code = false}) ==
        absl::UnimplementedError(
            "cuda:0 (emulated) has compute capability 12.0, and this heddle holds code for 80, 90a "
            "alone; build it with -DHEDDLE_CUDA_ARCHITECTURES=120"));
  CHECK(Opening({.has_code = false}).message().find("ARCHITECTURES=90a") != std::string::npos);
}

TEST_CASE("Errors that have one cause are explained by it", "[cuda]") {
  const auto has = [](cuda::Error error, const char* text) {
    return cuda::AdviceFor(error).find(text) != std::string::npos;
  };
  // The numbers are those of the CUDA Runtime API, cudaError_t.
  CHECK(has(46, "compute mode"));     // cudaErrorDevicesUnavailable
  CHECK(has(209, "architectures"));   // cudaErrorNoKernelImageForDevice
  CHECK(has(802, "fabricmanager"));   // cudaErrorSystemNotReady
  CHECK(has(803, "restart"));         // cudaErrorSystemDriverMismatch
  CHECK(has(805, "MPS"));             // cudaErrorMpsConnectionFailed
  CHECK(has(2, "nvidia-smi"));        // cudaErrorMemoryAllocation
  CHECK(cuda::AdviceFor(700) == "");  // cudaErrorIllegalAddress
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

// Row t of x is (t, 0, 0, ...), weight row r is (r + 1, ...), so that output (t, r) is t (r + 1).
// Numbers of 8 bits: exact in BF16.
void CheckProductOf(int64_t n, DType act, const std::vector<float>& bias) {
  constexpr int64_t kRows = 4, kCols = 8;
  auto device = EmulatedDevice(act);
  std::vector<uint16_t> bits(kRows * kCols, F32ToBF16(3));
  for (size_t r = 0; r < kRows; ++r) bits[r * kCols] = F32ToBF16(static_cast<float>(r + 1));
  const WeightSource source = {
      .data = bits.data(), .dtype = DType::kBF16, .rows = kRows, .cols = kCols};
  auto packed = *device->Pack({&source, 1});
  Matrix values(n, kCols), zeros(n, kRows);
  for (int64_t t = 0; t < n; ++t) *values.at(t, 0) = static_cast<float>(t % 13);
  Activations x(act, values), out(act, zeros);
  MustRun(*device, [&](Ops& ops) {
    ops.Linear({.x = x.tensor(),
                .weight = packed.get(),
                .bias = bias.empty() ? nullptr : bias.data(),
                .out = out.tensor()});
  });
  for (int64_t t : {int64_t{1}, n / 2 - 1, n / 2, n - 1}) {
    for (int64_t r : {0, 3}) {
      INFO("row " << t << " of " << n << ", column " << r);
      CHECK(out(t, r) == static_cast<float>(t % 13) * (r + 1) + (bias.empty() ? 0 : bias[r]));
    }
  }
}

TEST_CASE("There may be more rows than a grid has in its second dimension", "[cuda]") {
  constexpr int64_t kRows = 65537;
  CheckProductOf(kRows, DType::kF32, {});
  OnMachine on({.has_library = true});
  CheckProductOf(kRows, DType::kBF16, std::vector<float>(4, 2));  // the epilogue's
}

TEST_CASE("A device that lacks cuBLASLt says so", "[cuda]") {
  const auto advice_on = [](const Machine& machine) {
    OnMachine on(machine);
    return (*CreateCudaDevice({}))->Advice();
  };
  CHECK(advice_on({.has_library = true}).empty());
  const std::vector<std::string> advice = advice_on({.has_library = false});
  REQUIRE(advice.size() == 1);
  CHECK_THAT(advice[0], Catch::Contains("cuBLASLt") && Catch::Contains("slower"));
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
  auto play = [&](const std::vector<Tensor>& tensors, float factor) {
    cuda::Tape tape;
    runtime->set_tape(&tape);
    for (const Tensor& tensor : tensors) {
      CHECK(cuda::LaunchScaleLogits(tensor, factor, 0.0f, runtime->stream()) == cuda::kSuccess);
    }
    runtime->set_tape(nullptr);
    CHECK(tape.launches().size() == tensors.size());
    REQUIRE(graphs.Play(tape, 7).ok());
    REQUIRE(runtime->Synchronize().ok());
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

TEST_CASE("A graph that the driver refuses to change is made anew", "[cuda]") {
  OnMachine on({.refuses_changes = true});
  auto runtime = *cuda::Runtime::Open(0);
  cuda::GraphCache graphs(*runtime);
  Matrix a(1, 3);
  *a.at(0, 2) = 1;
  for (const float factor : {2.0f, 2.0f, 3.0f, 3.0f, 5.0f}) {
    cuda::Tape tape;
    runtime->set_tape(&tape);
    CHECK(cuda::LaunchScaleLogits(a.tensor(), factor, 0, runtime->stream()) == cuda::kSuccess);
    runtime->set_tape(nullptr);
    REQUIRE(graphs.Play(tape, 7).ok());
    REQUIRE(runtime->Synchronize().ok());
  }
  CHECK(a(0, 2) == 2 * 2 * 3 * 3 * 5);
  CHECK(graphs.counts().made == 3);
  CHECK(graphs.counts().refused == 2);
  CHECK(graphs.counts().replayed == 1);
  CHECK(graphs.counts().changed == 0);
}

TEST_CASE("Where the driver makes no graphs, launches are made one by one", "[cuda]") {
  OnMachine on({.refuses_graphs = true});
  auto runtime = *cuda::Runtime::Open(0);
  cuda::GraphCache graphs(*runtime);
  Matrix a(1, 3);
  *a.at(0, 2) = 1;
  for (int32_t time = 0; time < 6; ++time) {
    cuda::Tape tape;
    runtime->set_tape(&tape);
    CHECK(cuda::LaunchScaleLogits(a.tensor(), 2, 0, runtime->stream()) == cuda::kSuccess);
    runtime->set_tape(nullptr);
    REQUIRE(graphs.Play(tape, 7).ok());
    REQUIRE(runtime->Synchronize().ok());
  }
  CHECK(a(0, 2) == 64);
  CHECK(graphs.counts().failed == 3);  // and no more are tried
  CHECK(graphs.counts().direct == 3);
  CHECK(graphs.counts().made == 0);
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
      REQUIRE(runtime->Synchronize().ok());
      CHECK(a(0, 0) == 2);
    }
  }
  CHECK(graphs.counts().direct == 140);  // each was forgotten before it came again
}

// Runs decoding steps of three sequences whose contexts grow, on one device; returns all outputs.
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

// Launches by which graphs were changed, per step of a decoding batch whose contexts grow by a
// token each: two layers, and draws.
double ChangesPerStep(const std::vector<BatchSpec::Sequence>& first, int32_t steps) {
  OnMachine on({});
  auto device = *CreateCudaDevice({.activations = DType::kBF16, .workspace_bytes = 4 << 20});
  const auto rows = static_cast<int64_t>(first.size());
  constexpr int32_t kHeads = 4, kKvHeads = 2, kDim = 64, kVocab = 97;
  Random random(5);
  const TestWeight head = MakeWeight(random, DType::kBF16, kVocab, kHeads * kDim);
  const WeightSource source = head.source();
  auto packed = *device->Pack({&source, 1});
  const std::vector<float> frequencies(kDim / 2, 0.1f);
  TestCache cache(DType::kBF16, 300, 16, kKvHeads, kDim, 1);
  Matrix zeros(rows, (kHeads + 2 * kKvHeads) * kDim), values(rows, kHeads * kDim);
  Matrix angles(rows, kDim), logits(rows, kVocab);
  Activations qkv(DType::kBF16, zeros), x(DType::kBF16, values);
  const auto columns = [&](int64_t begin, int64_t count) {
    const Tensor t = qkv.tensor();
    return Tensor{t.row<uint16_t>(0) + begin * kDim, t.rows, count * kDim, t.stride};
  };
  std::vector<SampleRowParams> draws(static_cast<size_t>(rows));
  for (SampleRowParams& draw : draws) draw.temperature = 0;
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  constexpr int32_t kWarmUp = 3;  // direct, the graph, and one more
  int64_t before = 0;
  for (int32_t step = 0; step < kWarmUp + steps; ++step) {
    if (step == kWarmUp) before = cuda::emulate::GraphChanges();
    std::vector<BatchSpec::Sequence> sequences = first;
    for (BatchSpec::Sequence& sequence : sequences) sequence.context += step;
    const TestBatch batch({sequences, 16});
    REQUIRE(device->Plan(batch.view()).ok());
    MustRun(*device, [&](Ops& ops) {
      ops.RopeAngles({.inv_freq = frequencies, .cos_sin = angles.at(0, 0)});
      for (int layer = 0; layer < 2; ++layer) {
        ops.RopeKvWrite({.q = columns(0, kHeads),
                         .k = columns(kHeads, kKvHeads),
                         .v = columns(kHeads + kKvHeads, kKvHeads),
                         .n_heads = kHeads,
                         .cos_sin = angles.at(0, 0),
                         .rotary_dim = kDim,
                         .cache = cache.view});
        ops.Attention({.q = columns(0, kHeads),
                       .n_heads = kHeads,
                       .cache = cache.view,
                       .scale = 0.125f,
                       .out = x.tensor()});
      }
      ops.Linear(
          {.x = x.tensor(), .weight = packed.get(), .out = logits.tensor(), .out_f32 = true});
      ops.Sample({.logits = logits.tensor(), .rows = draws, .tokens = tokens.data()});
    });
  }
  return static_cast<double>(cuda::emulate::GraphChanges() - before) / steps;
}

TEST_CASE("Decoding steps change their graphs where attention's grid changes, and nowhere else",
          "[cuda]") {
  CHECK(ChangesPerStep({{1, 300}}, 64) == 0);
  // Four times, a context gets a further part: a launch of attention and one of the merge per
  // layer.
  CHECK(ChangesPerStep({{1, 300}, {1, 20}, {1, 95}, {1, 41}, {1, 130}, {1, 7}, {1, 77}, {1, 512}},
                       64) <= 4 * 4 / 64.0);
}

// Greedy chains of tokens, one per row: a row's logits are a product of its token's row of the
// table. With `ahead`, each step is launched before the previous one is finished and names its
// draws.
std::vector<std::vector<int32_t>> Chains(int32_t rows, int32_t steps, bool ahead, bool report) {
  constexpr int32_t kVocab = 97, kHidden = 64;
  auto device = *CreateCudaDevice(
      {.activations = DType::kBF16, .workspace_bytes = int64_t{4} << 20, .graphs = true});
  REQUIRE(device->max_in_flight() == 2);
  Random random(3);
  const TestWeight table = MakeWeight(random, DType::kF32, kVocab, kHidden);
  const TestWeight head = MakeWeight(random, DType::kBF16, kVocab, kHidden);
  const WeightSource sources[] = {table.source(), head.source()};
  auto packed_table = *device->Pack({&sources[0], 1});
  auto packed_head = *device->Pack({&sources[1], 1});
  auto hidden = *device->Allocate(rows * kHidden * 2);
  auto logits = *device->Allocate(rows * kVocab * 4);
  const Tensor x{hidden->data(), rows, kHidden, kHidden};
  const Tensor out{logits->data(), rows, kVocab, kVocab};
  std::vector<std::vector<int32_t>> tokens(static_cast<size_t>(steps) + 1);
  std::vector<std::vector<float>> logprobs(static_cast<size_t>(steps));
  for (int32_t r = 0; r < rows; ++r) tokens[0].push_back(r % kVocab);
  const auto launch = [&](size_t step) {
    TestBatch batch({std::vector<BatchSpec::Sequence>(static_cast<size_t>(rows), {1, 5}), 16});
    batch.token_ids = tokens[step];
    if (ahead && step > 0) {
      batch.token_ids.assign(rows, -1);  // nobody knows them yet
      for (int32_t r = 0; r < rows; ++r) batch.draw_of_row.push_back(r);
    }
    REQUIRE(device->Plan(batch.view()).ok());
    tokens[step + 1].resize(rows);
    logprobs[step].resize(rows);
    SampleRowParams row;
    row.temperature = 0;
    row.num_top = report ? 0 : -1;
    std::vector<SampleRowParams> draws(rows, row);
    for (int32_t r = 0; r < rows; ++r) draws[r].logit_row = r;
    const auto status = device->Launch([&](Ops& ops) {
      ops.Embed(*packed_table, 1.0f, x);
      ops.Linear({.x = x, .weight = packed_head.get(), .out = out, .out_f32 = true});
      // Draws in two calls, like blocks of logits.
      const auto draw = [&](int32_t from, int32_t count) {
        ops.Sample({.logits = out,
                    .rows = std::span(draws).subspan(from, count),
                    .tokens = tokens[step + 1].data() + from,
                    .logprobs = logprobs[step].data() + from});
      };
      draw(0, rows / 2);
      draw(rows / 2, rows - rows / 2);
    });
    REQUIRE(status.ok());
    draws.clear();  // and the batch: nothing of the host's is looked at after Launch
  };
  const auto finish = [&] {
    const auto timing = device->Finish();
    REQUIRE(timing.ok());
    CHECK(timing->run_ns >= 0);
  };
  for (size_t step = 0; step < static_cast<size_t>(steps); ++step) {
    launch(step);
    if (!ahead || step > 0) finish();  // this one, or that before
  }
  if (ahead) finish();
  for (const auto& of_step : logprobs) {
    for (float logprob : of_step) CHECK((logprob < 0) == report);
  }
  return tokens;
}

TEST_CASE("Steps launched ahead run the tokens that the step before draws", "[cuda]") {
  for (const bool is_late : {false, true}) {
    OnMachine on({.is_late = is_late});
    for (const bool report : {false, true}) {
      // The steps run as graphs, and launched one by one.
      CHECK(Chains(5, 7, /*ahead=*/true, report) == Chains(5, 7, /*ahead=*/false, report));
      CHECK(Chains(40, 4, /*ahead=*/true, report) == Chains(40, 4, /*ahead=*/false, report));
    }
  }
}

TEST_CASE("What outgrows the staging memory while a step is in flight still arrives", "[cuda]") {
  OnMachine on({.is_late = true});
  auto runtime = *cuda::Runtime::Open(0);
  cuda::Staging staging(*runtime);
  REQUIRE(staging.Reserve().ok());
  std::vector<const int32_t*> on_device;
  std::vector<int32_t> first;
  for (int step = 0; step < 6; ++step) {
    staging.Reset(step % 2);
    // The second and the fourth need another block; those behind them have one of all bytes.
    const std::vector<int32_t> large((step % 2) * (3 << 20), step), small(100, 10 + step);
    staging.Add(large);
    on_device.push_back(staging.Add(small));
    REQUIRE(staging.Send().ok());
    if (step == 0) continue;
    int32_t value = 0;
    REQUIRE(runtime->CopyToHost(&value, on_device.back(), sizeof(value)).ok());
    CHECK(value == 10 + step);
  }
}

TEST_CASE("A fault shows when the step in which it was is waited for", "[cuda]") {
  for (const bool is_late : {false, true}) {
    auto device = EmulatedDevice(DType::kF32);
    Matrix values(2, 8);
    const auto launch = [&] {
      return device->Launch([&](Ops& ops) { ops.ScaleLogits(values.tensor(), 2.0f, 0.0f); });
    };
    OnMachine on({.launches_before_fault = 1, .is_late = is_late});
    REQUIRE(launch().ok());
    REQUIRE(launch().ok());
    // On a machine that is not late, the second has run when the first is waited for.
    CHECK(device->Finish().ok() == is_late);
    CHECK(absl::IsUnavailable(device->Finish().status()));
    CHECK(absl::IsUnavailable(device->Synchronize()));
  }
}

}  // namespace
}  // namespace heddle::kernels::test
