// Functions that read what a family's GGUF files say beyond the metadata that all share, or supply
// what they leave out: see Family::refine_gguf. Private to engine/family.
#pragma once

#include "absl/status/status.h"
#include "engine/family/describe.h"

namespace heddle::engine {

absl::Status RefineGgufGemma(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                             NameMap* names);
absl::Status RefineGgufGraniteHybrid(const GgufSource& source, const TensorFinder& find,
                                     ModelSpec* spec, NameMap* names);
absl::Status RefineGgufGranite(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names);
absl::Status RefineGgufSmolLm3(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names);
absl::Status RefineGgufGptNeox(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names);
absl::Status RefineGgufGlm4(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                            NameMap* names);
absl::Status RefineGgufGptOss(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names);
absl::Status RefineGgufDeepseek(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                                NameMap* names);
// The same with indexers (IndexerSpec), whose keys are rotated by halves, or in pairs (GLM-5).
absl::Status RefineGgufDeepseek32(const GgufSource& source, const TensorFinder& find,
                                  ModelSpec* spec, NameMap* names);
absl::Status RefineGgufGlmDsa(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names);
absl::Status RefineGgufDeci(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                            NameMap* names);
absl::Status RefineGgufMistral3(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                                NameMap* names);
absl::Status RefineGgufApertus(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names);
absl::Status RefineGgufFalcon(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names);

}  // namespace heddle::engine
