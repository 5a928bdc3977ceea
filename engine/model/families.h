// From a checkpoint's metadata to a ModelDescription: what the model is, where its weights lie, and
// what generation defaults it brings. A family is a row of the table in family_table.cc, found by
// config.json's `architectures` or `model_type`, or by GGUF's `general.architecture`; one reading
// of the hyperparameters serves all rows.
//
// Reads metadata only, no weights. Everything read is checked: sizes are positive and bounded, and
// what contradicts itself or would change the numbers without being supported is refused. Messages
// name file, key, value found and what is valid.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/files/checkpoint.h"
#include "engine/model/model_spec.h"
#include "engine/model/name_map.h"
#include "engine/step.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine {

// What generation_config.json suggests where a request says nothing; absent: OpenAI's defaults.
struct GenerationDefaults {
  std::optional<bool> do_sample;  // false: greedy
  std::optional<float> temperature;
  std::optional<int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> typical_p;
  std::optional<float> repetition_penalty;
  std::optional<int32_t> max_new_tokens;

  bool operator==(const GenerationDefaults&) const = default;
};

struct ModelDescription {
  ModelSpec spec;
  NameMap names;
  std::vector<TokenId> eos_ids;  // each ends a text; ascending, may be empty
  std::optional<TokenId> bos_id;
  GenerationDefaults generation;
};

// INVALID_ARGUMENT for metadata that is wrong or contradicts itself; UNIMPLEMENTED for a family or
// a feature that is not supported (the message lists what is, and the nearest family).
absl::StatusOr<ModelDescription> Describe(const Checkpoint& checkpoint);

// The same from a parsed config.json and generation_config.json, without weights. `file` stands for
// the path of config.json in messages. Tensor names get the family's usual prefix.
absl::StatusOr<ModelDescription> DescribeConfig(const nlohmann::json& config,
                                                const nlohmann::json& generation_config,
                                                std::string_view file);

// Whether every tensor of the description is there, in a type that the kernels know, with the
// spec's shape, and no layer or expert behind those that it counts. Call before packing weights.
absl::Status ValidateTensors(const Checkpoint& checkpoint, const ModelDescription& description);

// Numbers that the model has learnt: norms, biases and every expert counted, tied heads once.
int64_t CountParameters(const ModelDescription& description);

// Names of all tensors that the description needs.
std::unordered_set<std::string> UsedTensors(const ModelDescription& description);

// Tensors of the checkpoint that the description does not use and that are not known to be
// harmless: worth a warning, because they may belong to a variant that this build does not know.
std::vector<std::string_view> UnusedTensors(const Checkpoint& checkpoint,
                                            const ModelDescription& description);

}  // namespace heddle::engine
