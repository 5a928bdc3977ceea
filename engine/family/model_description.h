// From a checkpoint's metadata to a ModelDescription: what the model is, where its weights lie, and
// which generation defaults it brings. A family is a row of the table in family_table.cc, found by
// config.json's `architectures` or `model_type`, or by GGUF's `general.architecture`; the same code
// reads the hyperparameters of all rows.
//
// Reads metadata only, no weights. Everything read is checked: sizes are positive and bounded, and
// contradictions and unsupported options that would change the numbers are refused. Messages name
// file, key, value found and what is valid.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/family/name_map.h"
#include "engine/files/checkpoint.h"
#include "engine/ids.h"
#include "engine/model/model_spec.h"
#include "engine/model/pooled_output.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine {

// Defaults from generation_config.json for what a request leaves out; absent: OpenAI's defaults.
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
  std::optional<PooledOutput> pooled;  // of a model that writes no text; absent: it does
};

// INVALID_ARGUMENT for metadata that is wrong or contradicts itself; UNIMPLEMENTED for a family or
// a feature that is not supported (the message lists what is, and the nearest family).
absl::StatusOr<ModelDescription> Describe(const Checkpoint& checkpoint);

// The same from a parsed config.json and generation_config.json, without weights. `file` stands for
// the path of config.json in messages. Tensor names get the family's usual prefix.
absl::StatusOr<ModelDescription> DescribeConfig(const nlohmann::json& config,
                                                const nlohmann::json& generation_config,
                                                std::string_view file);

// The same from a GGUF file whose general.architecture is none of the table's, but whose keys and
// names of tensors are those of `architecture`, which is. INVALID_ARGUMENT if it is no GGUF file.
absl::StatusOr<ModelDescription> DescribeGgufAs(const Checkpoint& checkpoint,
                                                std::string_view architecture);

// OK if every tensor of the description is there, in a type that the kernels know and with the
// spec's shape, and no layer or expert is beyond those that the spec counts. Call it before packing
// weights.
absl::Status ValidateTensors(const Checkpoint& checkpoint, const ModelDescription& description);

// The first half of ValidateTensors: other tensors may be there as well.
absl::Status CheckUsedTensors(const Checkpoint& checkpoint, const ModelDescription& description);

// The number of learnt parameters, including norms, biases and every expert; tied heads count once.
int64_t CountParameters(const ModelDescription& description);

// The names of all tensors that the description needs.
std::unordered_set<std::string> UsedTensors(const ModelDescription& description);

// Tensors of the checkpoint that the description does not use and that are not known to be harmless
// or an MTP layer's (engine/heads): they are worth a warning, because they may belong to a variant
// that this build does not know.
std::vector<std::string_view> UnusedTensors(const Checkpoint& checkpoint,
                                            const ModelDescription& description);

}  // namespace heddle::engine
