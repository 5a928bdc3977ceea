// Adapters of modules beside plain linears, on the emulated CUDA device against Hugging Face
// PEFT.
#include <string>

#include "catch2/catch.hpp"
#include "kernels/cuda/cuda_device.h"
#include "nlohmann/json.hpp"
#include "tests/adapter/golden_adapters.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
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

}  // namespace
}  // namespace heddle::engine
