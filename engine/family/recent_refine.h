// Readers of the keys that only files of recent_rows.h have; see Family::refine.
// Private to engine/family.
// UNIMPLEMENTED or INVALID_ARGUMENT names the key and what is supported; `spec` and `names` are
// then unspecified. Thread-safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/family/config_source.h"
#include "engine/family/family_table.h"
#include "engine/family/name_map.h"
#include "engine/model/model_spec.h"

namespace heddle::engine {

// Experts that are chosen by sigmoid scores with a bias, as in DeepSeek-V3, with what the family's
// class has for absent keys.
struct SigmoidExperts {
  int32_t experts = 128;
  int32_t top_k = 8;
  int32_t inter = 1408;
  bool renormalise = true;
};
absl::StatusOr<MoeSpec> ReadSigmoidExperts(const JsonSource& config, const SigmoidExperts& absent);

// Layers that see everything have no RoPE, if others have a window.
void DropRopeOfFullLayers(ModelSpec* spec);
// Both blocks read the stream through one norm.
void MakeParallel(ModelSpec* spec, NameMap* names);
// An integer in [0, max] that may be absent.
absl::StatusOr<int64_t> CountOr(const JsonSource& config, std::string_view key, int64_t max,
                                int64_t absent);

absl::Status RefineGemma1(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineCohere(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineCohere2(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineExaone4(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineOlmoe(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGlm4Moe(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineDots1(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineErnie45Moe(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGraniteMoe(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGraniteMoeShared(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGraniteMoeHybrid(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineMiniMaxM2(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineHunYuan(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineHunYuanMoe(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineMinistral3(const JsonSource& config, ModelSpec* spec, NameMap* names);

absl::Status RefineGgufGemma1(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names);
absl::Status RefineGgufCohere(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names);
absl::Status RefineGgufCohere2(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names);
absl::Status RefineGgufExaone4(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names);
absl::Status RefineGgufOlmoe(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                             NameMap* names);
absl::Status RefineGgufGlm4Moe(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names);
absl::Status RefineGgufHunYuan(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names);
// The norm before the MLP has the name that others give to one behind attention.
absl::Status RefineGgufPostAttentionNorm(const GgufSource& source, const TensorFinder& find,
                                         ModelSpec* spec, NameMap* names);

}  // namespace heddle::engine
