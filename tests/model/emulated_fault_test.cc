// A GPU that fails while it serves, and one that is too small: the engine loop on the emulated CUDA
// device.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/nano_batch.h"
#include "server/loop/engine_loop.h"
#include "tests/bench/serving_run.h"
#include "tests/emulate/machine.h"
#include "tests/support/paths.h"

namespace heddle {
namespace {

using kernels::cuda::emulate::SecondLaneLaunches;
using kernels::cuda::emulate::SetMachine;

engine::LoadOptions OnGpu() {
  engine::LoadOptions options;
  options.make_device = [] {
    return kernels::CreateCudaDevice({.workspace_bytes = int64_t{4} << 20});
  };
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.max_batch_tokens = 64;
  return options;
}

engine::LocalModel LoadStories() {
  auto model = engine::LoadLocalModel(test::SharedDataOrSkip("stories260K"), OnGpu());
  REQUIRE(model.ok());
  return std::move(model).value();
}

// Waits for the end of one request.
class Ending {
 public:
  server::EventSink Sink() {
    return [this](server::GenerationEvent&& event) {
      if (!event.finished) return;
      std::lock_guard lock(mutex_);
      event_ = std::move(event);
      came_.notify_all();
    };
  }
  server::GenerationEvent Wait() {
    std::unique_lock lock(mutex_);
    REQUIRE(came_.wait_for(lock, std::chrono::seconds(60), [this] { return event_.has_value(); }));
    return *event_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::optional<server::GenerationEvent> event_;
};

server::GenerationRequest Request(server::EngineLoop& loop, size_t prompt = 3) {
  server::GenerationRequest request;
  request.id = loop.NextId();
  for (size_t i = 0; i < prompt; ++i)
    request.prompt.push_back(1 + static_cast<int32_t>(4 * i % 200));
  request.max_tokens = 50;
  return request;
}

TEST_CASE("A fault of the GPU ends what runs with an error and refuses what comes", "[cuda]") {
  // The fault comes at once, or while two steps are in flight that have not been waited for; in the
  // middle of the answers, or while halves of a step share a chunk of a prompt.
  const bool is_late = GENERATE(false, true), in_halves = GENERATE(false, true);
  engine::LocalModel model = LoadStories();
  if (in_halves) {
    const kernels::NanoBatchProfile always = {.device_name = {}, .rules = {{.cut_rows = 8}}};
    REQUIRE(model.executor->device().SetNanoBatches(always).ok());
  }
  server::EngineLoop loop(std::move(model.executor), {});
  SetMachine({.launches_before_fault = 200, .is_late = is_late});
  Ending first, second;
  REQUIRE(loop.Submit(Request(loop, in_halves ? 400 : 3), first.Sink()).ok());
  REQUIRE(loop.Submit(Request(loop), second.Sink()).ok());
  const server::GenerationEvent end = first.Wait();
  CHECK(end.reason == server::FinishReason::kError);
  CHECK(end.error.message().find("illegal memory access") != absl::string_view::npos);
  CHECK(second.Wait().reason == server::FinishReason::kError);
  CHECK(loop.Stats().state == server::EngineState::kFailed);
  CHECK(loop.Failure() == end.error);
  CHECK(loop.Stats().running_sequences == 0);
  Ending third;
  CHECK(absl::IsUnavailable(loop.Submit(Request(loop), third.Sink())));
  CHECK_FALSE(loop.Drain(server::EngineLoop::Clock::now()));  // ends at once
  CHECK((SecondLaneLaunches() > 0) == in_halves);
  SetMachine({});
}

TEST_CASE("A model that is too large for a GPU is told what would fit", "[cuda]") {
  SetMachine({.total_bytes = int64_t{2} << 30, .taken_bytes = int64_t{1} << 30});
  engine::LoadOptions options = OnGpu();
  options.capacity.kv_bytes = 0;
  const auto model = engine::LoadRandomModel("tinyllama-1.1b", kernels::DType::kBF16, options);
  SetMachine({});
  CHECK(absl::IsResourceExhausted(model.status()));
  const std::string message(model.status().message());
  INFO(message);
  CHECK(message.find("the model does not fit: 992.0 MiB") == 0);  // less its workspace
  CHECK(message.find("weights need 2.0 GiB") != std::string::npos);
  CHECK(message.find("; 256.0 MiB are kept free; 1.") != std::string::npos);
  CHECK(message.find(" GiB are missing; ") != std::string::npos);
  CHECK(message.find(
            "of which other processes, the driver and heddle's own workspace hold 1.0 GiB") !=
        std::string::npos);
  CHECK(message.find("weights of up to 7") != std::string::npos);  // hundreds of MiB
}

TEST_CASE("A load of requests is served on the emulated GPU, and reported", "[cuda]") {
  engine::LocalModel model = LoadStories();
  const test::ServingReport report =
      test::RunServing(std::move(model.executor),
                       {.num_requests = 5, .mean_prompt_tokens = 20, .mean_output_tokens = 4});
  CHECK(report.failed == 0);
  CHECK(report.requests == 5);
  CHECK(report.prompt_tokens == 100);
  CHECK(report.output_tokens == 20);
  CHECK(report.steps >= 5);
  CHECK(report.first_token_ms_p99 > 0);
  CHECK(report.ToJson("x").find("\"output_tokens\": 20") != std::string::npos);
}

}  // namespace
}  // namespace heddle
