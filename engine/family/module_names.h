// The names of a model's linears in either format, whichever its own checkpoint has: adapters come
// in both.
#pragma once

#include <string_view>
#include <vector>

#include "engine/family/model_description.h"

namespace heddle::engine {

// Whether the description is that of a GGUF file.
bool HasGgufNames(const ModelDescription& model);

// The patterns of the family's names in safetensors, with or without the family's prefix. Where
// releases of transformers differ in the names of a router, there are several.
std::vector<NameMap> HuggingFaceNames(const ModelDescription& model);
// Those in GGUF files.
NameMap GgufFileNames(const ModelDescription& model);

// Whether rows of q and k in the family's GGUF files are permuted for interleaved pairs.
bool GgufPermutesQk(const ModelDescription& model);

// The offset that the model adds to the weights of norms as files of the format hold them.
float NormOffsetOf(const ModelDescription& model, bool gguf_file);

// Whether general.architecture of GGUF files of this family may be `architecture`.
bool IsGgufArchitecture(const ModelDescription& model, std::string_view architecture);

}  // namespace heddle::engine
