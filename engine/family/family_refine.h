// Functions that read into the spec what a family's config.json says beyond the keys that all
// share, or refuse what the family's row cannot express. Private to engine/family; see
// Family::refine.
#pragma once

#include "absl/status/status.h"
#include "engine/family/config_source.h"
#include "engine/family/name_map.h"
#include "engine/model/model_spec.h"

namespace heddle::engine {

absl::Status RefineGpt2(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGemma2(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGemma3(const JsonSource& config, ModelSpec* spec, NameMap* names);
// As RefineGemma3, of a model whose rows may see those behind them.
absl::Status RefineGemma3BothWays(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineSmolLm3(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGranite(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineMixtral(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineQwen2Moe(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineQwen3Moe(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineQwen3NextMoe(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineQwen35Experts(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineDeepseekV2(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineDeepseekV3(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineDeepseekV32(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGlmMoeDsa(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGlm4MoeLite(const JsonSource& config, ModelSpec* spec, NameMap* names);
// DeepSeek's latent attention with a dense MLP in all layers.
absl::Status RefineYoutu(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineDeci(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGptOss(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGptNeox(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineFalcon(const JsonSource& config, ModelSpec* spec, NameMap* names);

}  // namespace heddle::engine
