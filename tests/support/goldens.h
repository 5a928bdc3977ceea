// Goldens of tests/golden/: tiny models and the logits that Hugging Face transformers computes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nlohmann/json_fwd.hpp"

namespace heddle::test {

struct SyntheticTensor {
  std::string name;  // as in the safetensors file
  std::vector<int64_t> shape;
  float scale = 1.0f;
  float offset = 0.0f;
  std::string type;             // if other than the model's: "U8", for whole numbers
  int bits = 0;                 // for SyntheticValues, if other than the model's
  std::vector<int64_t> values;  // if not synthetic ones
};

struct Golden {
  std::string name;
  std::shared_ptr<const nlohmann::json> config;  // config.json
  std::string dtype;                             // of the safetensors: "F32", "BF16" or "F16"
  int shards = 1;                                // safetensors files
  int bits = 24;                                 // of SyntheticValues
  std::optional<std::string> gguf;               // weights as this GGUF type holds them; then the
                                                 // model exists only as GGUF
  std::vector<SyntheticTensor> tensors;
  std::vector<float> rope_divisors;  // what a GGUF file of it has as rope_freqs.weight, if any

  std::vector<int32_t> prompt;
  std::vector<std::vector<std::pair<int32_t, float>>> top;  // [position]: best tokens, their logits
  std::vector<std::vector<float>> last;                     // [2, vocab]: logits of the last two
};

// Aborts if there is no such golden or it is malformed: it is part of the tests.
Golden LoadGolden(std::string_view name);

// All names, in a fixed order.
std::vector<std::string> GoldenNames();
// Those of models that ranks and stages can share.
std::vector<std::string> RankGoldenNames();

// A file of tests/golden/ as JSON.
nlohmann::json LoadGoldenJson(std::string_view file_name);

}  // namespace heddle::test
