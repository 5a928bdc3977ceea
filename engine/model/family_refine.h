// What a family's config.json says beyond what all families share: each of these reads it into the
// spec, or refuses what the row cannot express. Private to engine/model; see Family::refine.
#pragma once

#include "absl/status/status.h"
#include "engine/model/config_source.h"
#include "engine/model/model_spec.h"
#include "engine/model/name_map.h"

namespace heddle::engine {

absl::Status RefineGpt2(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGemma2(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGemma3(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineSmolLm3(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGranite(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineMixtral(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineQwen2Moe(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineQwen3Moe(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineDeepseekV2(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineDeepseekV3(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineDeci(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGptOss(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGptNeox(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineFalcon(const JsonSource& config, ModelSpec* spec, NameMap* names);

}  // namespace heddle::engine
