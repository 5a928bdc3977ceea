// Adapters of every family against Hugging Face PEFT: tiny models and factors by formula
// (tests/golden/), the best logits of all positions.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/adapter/golden_adapters.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using nlohmann::json;
using test::Golden;
using test::MaxError;

void CheckCase(const json& golden, int bits, const Golden& base,
               const std::filesystem::path& model_path, const std::filesystem::path& dir) {
  const std::filesystem::path folder = test::WriteAdapter(golden, bits, dir / "adapter");
  for (const std::string ops : {"reference", "portable"}) {
    LocalModel model = test::LoadAdapterBase(model_path, ops);
    const test::RunAdapter adapter = test::LoadInto(model, model_path, folder);
    for (const int32_t chunk : {64, 7}) {
      INFO(ops << " in chunks of " << chunk);
      CHECK(MaxError(golden, test::AllLogits(*model.executor, base.prompt, chunk, adapter)) <
            1e-3f);
    }
    CHECK(MaxError(golden, test::AllLogits(*model.executor, base.prompt, 64)) > 0.02f);
  }
}

TEST_CASE("Adapters of every family give PEFT's logits within 1e-3", "[golden]") {
  const json goldens = test::LoadGoldenJson("adapters.json");
  const std::string name = GENERATE_COPY(from_range(test::CaseNames(goldens)));
  INFO(name);
  const json& golden = goldens[name];
  const Golden base = test::LoadGolden(golden["base"].get<std::string>());
  test::TempDir dir;
  CheckCase(golden, goldens["bits"], base, test::WriteSyntheticModel(base, dir / "model"),
            dir.path());
}

TEST_CASE("PEFT's adapters give the same logits beside bases in GGUF files", "[golden]") {
  const json goldens = test::LoadGoldenJson("adapters.json");
  // Rows of q and k are permuted in the files of llama, mistral, granite and decilm; those of
  // gpt_neox and falcon are regrouped; experts and vectors of gpt_oss have other names.
  const std::string name =
      GENERATE("llama", "mistral", "qwen2", "qwen3", "granite", "decilm", "gpt_neox", "falcon",
               "phi3", "glm4", "gpt2", "gpt_oss", "olmo2", "nemotron");
  INFO(name);
  const json& golden = goldens[name];
  test::TempDir dir;
  CheckCase(golden, goldens["bits"], test::LoadGolden(name),
            test::WriteGgufBase(name, dir / "model.gguf"), dir.path());
}

}  // namespace
}  // namespace heddle::engine
