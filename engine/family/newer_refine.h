// Readers of the keys that only files of newer_rows.h have; see Family::refine.
// Private to engine/family.
// UNIMPLEMENTED or INVALID_ARGUMENT names the key and what is supported; `spec` and `names` are
// then unspecified. Thread-safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "engine/family/config_source.h"
#include "engine/family/family_table.h"
#include "engine/family/name_map.h"
#include "engine/model/model_spec.h"

namespace heddle::engine {

absl::Status RefineIQuestCoder(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineCwm(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineHyperClovaX(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineGraniteSwa(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineMiniCpm(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineSolarOpen(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineExaoneMoe(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineHyV3(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineMellum(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineApertus(const JsonSource& config, ModelSpec* spec, NameMap* names);
absl::Status RefineStableLm(const JsonSource& config, ModelSpec* spec, NameMap* names);

absl::Status RefineGgufHyV3(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                            NameMap* names);
absl::Status RefineGgufGraniteSwa(const GgufSource& source, const TensorFinder& find,
                                  ModelSpec* spec, NameMap* names);
absl::Status RefineGgufMiniCpm(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names);
absl::Status RefineGgufExaoneMoe(const GgufSource& source, const TensorFinder& find,
                                 ModelSpec* spec, NameMap* names);
absl::Status RefineGgufMellum(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names);
absl::Status RefineGgufStableLm(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                                NameMap* names);

}  // namespace heddle::engine
