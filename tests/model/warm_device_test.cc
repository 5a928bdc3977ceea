// Models on a device that tunes, which is warmed up before it serves: on the emulated CUDA device,
// or on the PTX machine.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/emulate/machine.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/paths.h"

namespace heddle {
namespace {

using engine::TokenId;

engine::LoadOptions On(kernels::CudaDeviceOptions device) {
  device.workspace_bytes = int64_t{4} << 20;
  engine::LoadOptions options;
  options.make_device = [device] { return kernels::CreateCudaDevice(device); };
  options.capacity.max_batch_tokens = 64;
  options.capacity.max_batch_seqs = 8;
  return options;
}

engine::LoadOptions Tuned() { return On({.tunes = true}); }
engine::LoadOptions Untuned() { return On({}); }

TEST_CASE("A device that tunes is warmed up, and answers as one that does not", "[cuda]") {
  const auto dir = test::SharedDataOrSkip("stories260K");
  const std::vector<TokenId> prompt = {1, 5, 9, 2, 7, 30, 11};
  auto tuned = engine::LoadLocalModel(dir, Tuned());
  REQUIRE(tuned.ok());
  CHECK(tuned->warm_up_seconds > 0);
  CHECK_FALSE(tuned->executor->device().TimedChoices().empty());
  const auto plain = engine::LoadLocalModel(dir, Untuned());
  REQUIRE(plain.ok());
  CHECK(plain->warm_up_seconds == 0);
  CHECK(plain->executor->device().TimedChoices().empty());
  const test::GreedyOptions options{.max_tokens = 8};
  CHECK(test::RunGreedy(*tuned->executor, prompt, options).ids ==
        test::RunGreedy(*plain->executor, prompt, options).ids);
}

#if defined(HEDDLE_CUDA_EMULATE)  // other devices cannot be changed
// The pool gets half of what 640 MiB leave beside the reserve: 256 MiB of it before a warm-up, 128
// after.
TEST_CASE("What a warm device has left becomes pages", "[cuda]") {
  constexpr double kMiB = 1 << 20;
  const auto dir = test::SharedDataOrSkip("stories260K");
  kernels::cuda::emulate::SetMachine({.total_bytes = int64_t{640} << 20});
  engine::LoadOptions options = Tuned();
  options.capacity.max_batch_tokens = 16;
  options.capacity.kv_fraction = 0.5;
  const auto pool_bytes = [](const engine::LocalModel& model) {
    const auto pages = model.executor->limits().num_pages;
    CHECK(model.capacity.limits.num_pages == pages);
    return static_cast<double>(model.executor->page_bytes() * pages);
  };
  const auto free_bytes = [](const engine::LocalModel& model) {
    return static_cast<double>(model.executor->device().memory()->available_bytes);
  };
  {
    const auto model = engine::LoadLocalModel(dir, options);
    REQUIRE(model.ok());
    CHECK(pool_bytes(*model) == Approx(free_bytes(*model) - 128 * kMiB).margin(kMiB / 16));
    CHECK(pool_bytes(*model) == Approx(model->capacity.kv_bytes));
  }
  options.make_device = Untuned().make_device;
  const auto model = engine::LoadLocalModel(dir, options);
  REQUIRE(model.ok());
  CHECK(pool_bytes(*model) == Approx(free_bytes(*model) - 256 * kMiB).margin(kMiB / 16));
  kernels::cuda::emulate::SetMachine({});
}

TEST_CASE("A device that fails while it is warmed up fails the start", "[cuda]") {
  const auto dir = test::SharedDataOrSkip("stories260K");
  kernels::cuda::emulate::SetMachine({.launches_before_fault = 100});
  const absl::Status status = engine::LoadLocalModel(dir, Tuned()).status();
  kernels::cuda::emulate::SetMachine({});
  CHECK(absl::IsUnavailable(status));
  CHECK(status.message().find("cuda:0 (emulated) failed") != std::string::npos);
}

#endif

}  // namespace
}  // namespace heddle
