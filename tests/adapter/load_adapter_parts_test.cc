// Adapters with more than factors of matrices: embeddings, magnitudes, vectors and whole matrices.
#include <cstring>
#include <limits>

#include "catch2/catch.hpp"
#include "tests/adapter/written_adapters.h"
#include "tests/support/status_matchers.h"
#include "tests/support/synthetic_model.h"

namespace heddle::engine {
namespace {

using absl::StatusCode;
using test::CheckError;

TensorToWrite Vector(const std::string& name, int64_t count, float first) {
  TensorToWrite vector = Counting(name, 1, count, first);
  vector.shape = {count};
  return vector;
}

TEST_CASE(
    "Broken tensors of embeddings, magnitudes, vectors and whole matrices are refused by name",
    "[adapter][unit]") {
  const auto invalid = StatusCode::kInvalidArgument;
  const std::string embed = "base_model.model.model.embed_tokens";
  const auto error = [](std::vector<TensorToWrite> tensors, const json& more = json::object()) {
    json config = Config();
    config.update(more);
    return Load("llama", config, tensors).status();
  };
  const auto of_embedding = [&](int64_t tokens, int64_t hidden, int64_t rank) {
    return std::vector{Counting(embed + ".lora_embedding_A", rank, tokens, 0.0f),
                       Counting(embed + ".lora_embedding_B", hidden, rank, 1000.0f)};
  };
  CHECK(error(of_embedding(301, 96, 2)).ok());
  CheckError(error(of_embedding(300, 96, 2)), invalid, {"embed_tokens", "300", "301"});
  CheckError(error(of_embedding(301, 64, 2)), invalid, {"embed_tokens", "64", "96"});
  CheckError(error(of_embedding(301, 96, 9)), invalid, {"embed_tokens", "rank"});
  CheckError(error({of_embedding(301, 96, 2)[0]}), invalid, {"embed_tokens", "A and no B"});
  // Factors of a matrix for an embedding, and the other way round.
  CheckError(error(Factors(embed, 301, 96)), invalid, {"embed_tokens"});
  std::vector<TensorToWrite> both = of_embedding(301, 96, 2);
  for (const TensorToWrite& tensor : Factors(embed, 301, 96)) both.push_back(tensor);
  CheckError(error(both), invalid, {"embed_tokens", "twice"});
  // The vocabulary was resized.
  std::vector<TensorToWrite> resized = of_embedding(301, 96, 2);
  resized.push_back(Counting(embed + ".base_layer.weight", 302, 96, 0.0f));
  CheckError(error(resized), invalid, {"embed_tokens", "302", "resized"});

  std::vector<TensorToWrite> dora = Factors(kQ0, 96, 96);
  CheckError(error(dora, {{"use_dora", true}}), invalid, {"q_proj", "lora_magnitude_vector"});
  dora.push_back(Vector(std::string(kQ0) + ".lora_magnitude_vector", 95, 1.0f));
  CheckError(error(dora), invalid, {"lora_magnitude_vector", "use_dora"});
  CheckError(error(dora, {{"use_dora", true}}), invalid, {"lora_magnitude_vector", "95", "96"});
  CheckError(error({dora[2]}, {{"use_dora", true}}), invalid, {"q_proj", "no factors"});
  dora[2] = Vector(std::string(kQ0) + ".lora_magnitude_vector", 96, 1.0f);
  CheckError(error(dora, {{"use_dora", true}}), invalid, {"base has no files"});

  CheckError(error({Vector(std::string(kQ0) + ".base_layer.bias", 95, 0.0f)}), invalid,
             {"q_proj", "95", "96"});
  CheckError(error({Vector(std::string(kQ0) + ".lora_B.bias", 96, 0.0f)}), invalid,
             {"q_proj", "no factors"});
  CheckError(error({Counting(std::string(kQ0) + ".weight", 96, 96, 0.0f)}), invalid,
             {"q_proj", "modules_to_save"});
  CheckError(error({Counting("base_model.model.lm_head.weight", 300, 96, 0.0f)}), invalid,
             {"lm_head", "300", "301"});
  CheckError(error({Vector("base_model.model.model.norm.weight", 95, 0.0f)}), invalid,
             {"norm", "95", "96"});
  CheckError(error(Factors("base_model.model.model.norm", 96, 96)), invalid, {"norm"});
  std::vector<TensorToWrite> head = Factors("base_model.model.lm_head", 301, 96);
  CHECK(error(head).ok());
  head.push_back(Counting("base_model.model.lm_head.weight", 301, 96, 0.0f));
  CheckError(error(head), invalid, {"lm_head", "whole matrix"});
}

TEST_CASE("Magnitudes that are no numbers are refused, and good ones become gains",
          "[adapter][unit]") {
  test::TempDir dir;
  const ModelDescription model = Describe("llama");
  const auto base = test::WriteSyntheticModel(test::LoadGolden("llama"), dir / "base");
  json config = Config();
  config["use_dora"] = true;
  std::vector<TensorToWrite> tensors = Factors(kQ0, 96, 96);
  tensors.push_back(Vector(std::string(kQ0) + ".lora_magnitude_vector", 96, 1.0f));
  const auto load = [&] {
    std::filesystem::create_directory(dir / "adapter");
    test::WriteFile(dir / "adapter" / "adapter_config.json", config.dump());
    test::WriteFile(dir / "adapter" / "adapter_model.safetensors", test::SafetensorsBytes(tensors));
    return LoadAdapter(dir / "adapter", {.model = &model,
                                         .dtype = kernels::DType::kF32,
                                         .page_bytes = 1 << 16,
                                         .max_rank = 8,
                                         .base = base});
  };
  const auto loaded = load();
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  CHECK(Find(*loaded->image, 0, AdapterSite::kQkv, 0).gain != kNoPlace);
  const float bad =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  std::memcpy(&tensors[2].data[40], &bad, 4);
  CheckError(load().status(), StatusCode::kInvalidArgument, {"q_proj", "magnitude"});
}

}  // namespace
}  // namespace heddle::engine
