// The names of each family's tensors in safetensors, and of all in GGUF, as patterns for NameMap.
// The rows of family_table.cc point here, and MakeNames clears names that a spec has no use for.
// Private to engine/family.
#pragma once

#include "engine/family/name_map.h"

namespace heddle::engine {

const NameMap& LlamaNames();  // most families use the same
const NameMap& MixtralNames();
const NameMap& MixtralStackedNames();
const NameMap& QwenMoeNames();
const NameMap& QwenMoeStackedNames();
const NameMap& CohereNames();
const NameMap& Glm4MoeNames();
const NameMap& Glm4MoeStackedNames();
const NameMap& ErnieMoeNames();
const NameMap& ErnieMoeStackedNames();
const NameMap& GraniteMoeNames();
const NameMap& MiniMaxM2Names();
const NameMap& GptOssNames();
const NameMap& DeepseekNames();
const NameMap& DeciNames();
const NameMap& DeepseekStackedNames();
const NameMap& GptOssMxfp4Names();
const NameMap& GemmaNames();
const NameMap& Olmo2Names();
const NameMap& Phi3Names();
const NameMap& GlmNames();
const NameMap& Glm4Names();
const NameMap& Starcoder2Names();
const NameMap& Gpt2Names();
const NameMap& NemotronNames();
const NameMap& GptNeoxNames();
const NameMap& FalconNames();
const NameMap& HunYuanNames();
const NameMap& HunYuanMoeNames();
const NameMap& HunYuanMoeStackedNames();

// The names in every GGUF file, whatever the family.
const NameMap& GgufNames();

}  // namespace heddle::engine
