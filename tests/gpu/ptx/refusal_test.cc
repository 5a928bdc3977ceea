// A device whose calls fail, on the device build: every call of the CUDA runtime that a device's
// life makes, one after the other. What was not done must not be taken for done, nothing may abort,
// and a lost device must end every call with an error.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/gpu/ptx/cudart.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels {
namespace {

constexpr int64_t kCols = 64;

// Sets what fails for the rest of a test.
struct Refusing {
  explicit Refusing(const ptx::Context::Refusal& refusal) {
    ptx::Context::Get().Restart();
    ptx::Context::Get().set_refusal(refusal);
  }
  ~Refusing() { ptx::Context::Get().Restart(); }
  Refusing(const Refusing&) = delete;
  Refusing& operator=(const Refusing&) = delete;
};

// Doubles the logits and draws the largest; by the third time as a graph, by the fourth as a
// changed one.
absl::Status Step(Device& device, Tensor logits, int32_t wanted) {
  const test::TestBatch batch({{{1, 1}}, 16});
  HEDDLE_RETURN_IF_ERROR(device.Plan(batch.view()));
  int32_t token = -1;
  float logprob = 1;
  SampleRowParams row;
  row.temperature = 0;
  row.num_top = 0;
  HEDDLE_RETURN_IF_ERROR(device.Run([&](Ops& ops) {
    ops.ScaleLogits(logits, 2.0f, 0.0f);
    ops.Sample({.logits = logits, .rows = {&row, 1}, .tokens = &token, .logprobs = &logprob});
  }));
  if (token == wanted && logprob <= 0) return absl::OkStatus();
  return absl::DataLossError("a wrong token, and no error");
}

// Returns OK only if the data read back show all that was done.
absl::Status LiveOnce() {
  HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                          CreateCudaDevice({.workspace_bytes = int64_t{1} << 20}));
  const int64_t bytes = kCols * int64_t{sizeof(float)};
  HEDDLE_ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> buffer, device->Allocate(2 * bytes));
  const Tensor first = {buffer->data(), 1, kCols, kCols};
  const Tensor second = {static_cast<float*>(buffer->data()) + kCols, 1, kCols, kCols};
  std::vector<float> values(kCols, 0.5f), read(kCols);
  values[7] = 1;
  HEDDLE_RETURN_IF_ERROR(device->Upload(first.data, values.data(), bytes));
  values[7] = 0;
  values[9] = 1;
  HEDDLE_RETURN_IF_ERROR(device->UploadBeside(second.data, values.data(), bytes));
  for (const Tensor& logits : {first, first, first, second}) {
    HEDDLE_RETURN_IF_ERROR(Step(*device, logits, logits.data == first.data ? 7 : 9));
  }
  HEDDLE_RETURN_IF_ERROR(device->DownloadBeside(read.data(), first.data, bytes));
  if (read[7] != 8 || read[0] != 4) return absl::DataLossError("wrong values, and no error");
  HEDDLE_RETURN_IF_ERROR(device->Download(read.data(), second.data, bytes));
  if (read[9] != 2 || read[0] != 1) return absl::DataLossError("wrong values, and no error");
  return device->Synchronize();
}

TEST_CASE("Whatever call of the runtime fails, nothing is taken for done that is not",
          "[ptx][kernel]") {
  int64_t calls = 0, refused = 0;
  for (bool came = true; came; ++calls) {
    INFO("the call after " << calls << " others");
    const Refusing refusing({.after = calls, .error = cudaErrorUnknown});
    const absl::Status status = LiveOnce();
    came = ptx::Context::Get().has_refused();
    INFO(status.ToString());
    CHECK_FALSE(absl::IsDataLoss(status));
    if (!came) CHECK(status.ok());
    refused += status.ok() ? 0 : 1;
  }
  CHECK(calls > 100);
  CHECK(refused > 60);  // the others were calls that undo, ask or hint
}

TEST_CASE("Whenever the device is lost, the call that notices fails, and nothing aborts",
          "[ptx][kernel]") {
  int64_t calls = 0, unnoticed = 0;
  for (bool came = true; came; ++calls) {
    INFO("lost at the call after " << calls << " others");
    const Refusing refusing({.after = calls, .error = cudaErrorLaunchFailure, .is_lost = true});
    const absl::Status status = LiveOnce();
    came = ptx::Context::Get().has_refused();
    INFO(status.ToString());
    CHECK_FALSE(absl::IsDataLoss(status));
    unnoticed += came && status.ok() ? 1 : 0;
  }
  // Those of the end: memory, streams, events and the graph are given back.
  CHECK(unnoticed < 60);
}

TEST_CASE("What a kernel needs beyond others is asked for once", "[ptx][kernel]") {
  const auto device = *CreateCudaDevice(
      {.workspace_bytes = int64_t{1} << 20, .graphs = false, .one_memory_split = true});
  const int64_t bytes = kCols * int64_t{sizeof(float)};
  const auto buffer = *device->Allocate(bytes);
  std::vector<float> values(kCols, 0.5f);
  values[7] = 1;
  REQUIRE(device->Upload(buffer->data(), values.data(), bytes).ok());
  const Tensor logits = {buffer->data(), 1, kCols, kCols};
  const int64_t before = ptx::Context::Get().attribute_requests;
  REQUIRE(Step(*device, logits, 7).ok());
  const int64_t asked = ptx::Context::Get().attribute_requests - before;
  CHECK(asked >= 4);  // two kernels, two requests each
  REQUIRE(Step(*device, logits, 7).ok());
  CHECK(ptx::Context::Get().attribute_requests == before + asked);
}

TEST_CASE("A GPU that the program holds no code for is refused at start", "[ptx][kernel]") {
  ptx::Context::Get().device.has_code = false;
  const absl::Status status = CreateCudaDevice({}).status();
  ptx::Context::Get().device.has_code = true;
  CHECK(absl::IsUnimplemented(status));
  CHECK(status.message().find("has compute capability 9.0, and this heddle holds code for") !=
        absl::string_view::npos);
}

TEST_CASE("A GPU that another process has to itself is refused with why", "[ptx][kernel]") {
  // The driver's version, how many devices, the device's properties, then the device.
  const Refusing refusing({.after = 3, .error = cudaErrorDevicesUnavailable});
  const absl::Status status = CreateCudaDevice({}).status();
  CHECK(absl::IsUnavailable(status));
  CHECK(status.message().find("failed while selecting the device") != absl::string_view::npos);
  CHECK(status.message().find("compute mode") != absl::string_view::npos);
}

TEST_CASE("A driver that does not answer is no machine without a GPU", "[ptx][kernel]") {
  const Refusing refusing({.after = 1, .error = cudaErrorSystemNotReady});
  const absl::Status status = CreateCudaDevice({}).status();
  CHECK(absl::IsUnavailable(status));  // --device auto goes on to the CPU after other codes
  CHECK(status.message().find("nvidia-fabricmanager") != absl::string_view::npos);
}

TEST_CASE("Page-locked memory that is refused is asked for by its name", "[ptx][kernel]") {
  auto runtime = *cuda::Runtime::Open(0);
  {
    ptx::Context::Get().set_refusal({.after = 0, .error = cudaErrorMemoryAllocation});
    const absl::Status status = runtime->AllocatePinned(int64_t{1} << 30).status();
    CHECK(absl::IsResourceExhausted(status));
    CHECK(status.message().find("no 1.00 GiB of page-locked memory") != absl::string_view::npos);
  }
  const auto data = runtime->AllocatePinned(64);  // the error is forgotten
  REQUIRE(data.ok());
  runtime->FreePinned(*data);
}

}  // namespace
}  // namespace heddle::kernels
