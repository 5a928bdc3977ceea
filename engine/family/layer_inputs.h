// Reads the parts that Gemma 3n's and Gemma 4's text models have in common, from config.json and
// from GGUF: inputs of single layers, and last layers that read the keys of earlier ones. Private
// to engine/family.
//
// Thread-safety: pure functions of their arguments. Errors name the key and the values that are
// valid.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/family/config_source.h"
#include "engine/family/family_table.h"
#include "engine/family/name_map.h"
#include "engine/model/model_spec.h"

namespace heddle::engine {

void NameLayerInputs(NameMap* names);
void NameGgufLayerInputs(NameMap* names);

// Fill ModelSpec::layer_input_dim and layer_input_vocab. `absent_vocab`: where config.json lacks
// the rows of the table; in GGUF they are the tensor's.
absl::Status ReadLayerInputs(const JsonSource& config, int32_t absent_vocab, ModelSpec* spec);
absl::Status ReadGgufLayerInputs(const GgufSource& source, const TensorFinder& find,
                                 ModelSpec* spec);

// Let the last layers, as many as the file says, read the keys of the last layer before them that
// sees as far. `absent`: how many they are if config.json does not say.
absl::Status ReadSharedKeys(const JsonSource& config, int64_t absent, ModelSpec* spec);
absl::Status ReadGgufSharedKeys(const GgufSource& source, ModelSpec* spec);

// A number for each layer, where the file has one for all or a list.
absl::StatusOr<std::vector<int64_t>> NumbersOfLayers(const GgufSource& source, std::string_view key,
                                                     size_t n_layers);

}  // namespace heddle::engine
