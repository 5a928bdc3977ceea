// Adapters of modules beside plain linears, on the emulated CUDA device against Hugging Face
// PEFT.
#include <string>

#include "catch2/catch.hpp"
#include "kernels/cuda/cuda_device.h"
#include "nlohmann/json.hpp"
#include "tests/adapter/golden_adapters.h"
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/long_runs.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using nlohmann::json;

TEST_CASE("Adapters of all kinds give PEFT's logits on CUDA", "[cuda]") {
  const json goldens = test::LoadGoldenJson("adapter_kinds.json");
  const std::string name = GENERATE("embedding_scaled", "saved_norms_gemma", "dora_tables",
                                    "latent", "experts_gpt_oss", "set");
  INFO(name);
  const json& golden = goldens[name];
  const test::Golden base = test::LoadGolden(golden["base"].get<std::string>());
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(base, dir / "model");
  LoadOptions options = test::AdapterBaseOptions();
  options.make_device = [] {
    return kernels::CreateCudaDevice(
        {.activations = kernels::DType::kF32, .workspace_bytes = int64_t{4} << 20});
  };
  const LocalModel model = test::LoadAdapterBase(path, options);
  const test::RunAdapter adapter = test::LoadCase(golden, goldens["bits"], model, path, dir.path());
  CHECK(test::MaxError(golden, test::AllLogits(*model.executor, base.prompt, 64, adapter)) < 2e-3f);
}

TEST_CASE("Adapters give PEFT's logits on GPUs that share the base", "[cuda]") {
  kernels::cuda::emulate::Machine machine;
  machine.device_count = 4;
  kernels::cuda::emulate::SetMachine(machine);
  const json goldens = test::LoadGoldenJson("adapter_kinds.json");
  struct Case {
    std::string name;
    int32_t tp, pp;
    bool has_whole_experts = false;
  };
  const auto [name, tp, pp, has_whole_experts] =
      GENERATE(from_range(test::Some<Case>(5, {{"embedding", 3, 1},
                                               {"head", 2, 2},
                                               {"dora_fused", 2, 2},
                                               {"experts_gpt_oss", 2, 1, true},
                                               {"latent", 3, 1},
                                               {"bias_all_qkv", 2, 1},
                                               {"experts_gpt_oss", 2, 1},
                                               {"set", 2, 2}})));
  INFO(name << " on " << tp << " GPUs in each of " << pp << " stages");
  const json& golden = goldens[name];
  const test::Golden base = test::LoadGolden(golden["base"].get<std::string>());
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(base, dir / "model");
  LoadOptions options = test::AdapterBaseOptions();
  options.layout.tp = tp;
  options.layout.pp = pp;
  options.layout.expert_parallel = has_whole_experts;
  options.make_rank_device = [](int32_t rank) {
    return kernels::CreateCudaDevice({.ordinal = rank,
                                      .activations = kernels::DType::kF32,
                                      .workspace_bytes = int64_t{4} << 20});
  };
  options.make_device = [make = options.make_rank_device] { return make(0); };
  for (int32_t rank = 0; rank < tp * pp; ++rank) options.rank_devices.push_back(rank);
  {
    const LocalModel model = test::LoadAdapterBase(path, options);
    const test::RunAdapter adapter =
        test::LoadCase(golden, goldens["bits"], model, path, dir.path());
    REQUIRE(adapter.image->num_ranks() == tp * pp);
    CHECK(test::MaxError(golden, test::AllLogits(*model.executor, base.prompt, 7, adapter)) <
          2e-3f);
    // Rows without the adapter are those of the base, bit for bit.
    CHECK(test::AllLogits(*model.executor, base.prompt, 64, {adapter.image, 0.0f}) ==
          test::AllLogits(*model.executor, base.prompt, 64));
  }
  CHECK(kernels::cuda::emulate::TakeFindings().empty());
  kernels::cuda::emulate::SetMachine({});
}

}  // namespace
}  // namespace heddle::engine
