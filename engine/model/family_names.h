// How each family names its tensors in safetensors: patterns for NameMap. Private to engine/model;
// the rows of family_table.cc point here. Names that a spec has no use for are cleared by
// MakeNames.
#pragma once

#include "engine/model/name_map.h"

namespace heddle::engine {

const NameMap& LlamaNames();  // most families took these over
const NameMap& MixtralNames();
const NameMap& MixtralStackedNames();
const NameMap& QwenMoeNames();
const NameMap& QwenMoeStackedNames();
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

// The names that every GGUF file uses, whatever the family.
const NameMap& GgufNames();

}  // namespace heddle::engine
