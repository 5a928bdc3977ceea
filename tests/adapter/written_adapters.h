// Adapters in PEFT's format that a test writes, for the models of goldens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/adapter/load_adapter.h"
#include "nlohmann/json.hpp"
#include "tests/support/goldens.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {

using nlohmann::json;
using test::TensorToWrite;

// The golden "llama": 3 layers, hidden 96, 6 heads and 2 KV heads of 16, inter 160.
inline constexpr const char* kQ0 = "base_model.model.model.layers.0.self_attn.q_proj";

inline ModelDescription Describe(const char* golden) {
  auto model = DescribeConfig(*test::LoadGolden(golden).config, json::object(), "config.json");
  REQUIRE(model.ok());
  return *std::move(model);
}

// Element i is `first` + i: exact in F32, whatever the place.
inline TensorToWrite Counting(const std::string& name, int64_t rows, int64_t cols, float first) {
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  const auto bytes = std::as_bytes(std::span(values));
  return {name, "F32", {rows, cols}, {bytes.begin(), bytes.end()}};
}

inline std::vector<TensorToWrite> Factors(const std::string& module, int64_t out, int64_t in,
                                          int64_t rank = 2) {
  return {Counting(module + ".lora_A.weight", rank, in, 0.0f),
          Counting(module + ".lora_B.weight", out, rank, 1000.0f)};
}

inline json Config() { return {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 6}}; }

// `config`: the text of adapter_config.json.
inline absl::StatusOr<LoadedAdapter> LoadPeft(const ModelDescription& model,
                                              const std::string& config,
                                              std::span<const TensorToWrite> tensors,
                                              int64_t page_bytes = 1 << 16, int64_t max_bytes = 0) {
  test::TempDir folder;
  test::WriteFile(folder / "adapter_config.json", config);
  test::WriteFile(folder / "adapter_model.safetensors", test::SafetensorsBytes(tensors));
  CHECK(IsAdapter(folder.path()));
  return LoadAdapter(folder.path(), {.model = &model,
                                     .dtype = kernels::DType::kF32,
                                     .page_bytes = page_bytes,
                                     .max_rank = 8,
                                     .max_bytes = max_bytes});
}

inline absl::StatusOr<LoadedAdapter> Load(const char* golden, const json& config,
                                          std::span<const TensorToWrite> tensors,
                                          int64_t page_bytes = 1 << 16, int64_t max_bytes = 0) {
  return LoadPeft(Describe(golden), config.dump(), tensors, page_bytes, max_bytes);
}

inline const ImageFactors& Find(const AdapterImage& image, int32_t layer, AdapterSite site,
                                int32_t part) {
  for (const ImageFactors& factors : image.factors) {
    if (factors.layer == layer && factors.site == site && factors.part == part) return factors;
  }
  FAIL("the image has no such factors");
  return image.factors.front();
}

}  // namespace heddle::engine
