// Functions that read what GGUF files of encoders say beyond the metadata that all families share
// (Family::refine_gguf), and the output of GGUF files that write no text. Private to engine/family.
// Thread-safety: pure functions.
//
// Source: the names of llama.cpp's `gguf` package; llama.cpp for what a key means where it is
// absent.
#pragma once

#include "absl/status/status.h"
#include "engine/family/describe.h"

namespace heddle::engine {

// BERT, RoBERTa and XLM-RoBERTa (whose learned positions the converter has shifted), DistilBERT.
absl::Status RefineGgufBert(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                            NameMap* names);
absl::Status RefineGgufModernBert(const GgufSource& source, const TensorFinder& find,
                                  ModelSpec* spec, NameMap* names);
absl::Status RefineGgufEmbeddingGemma(const GgufSource& source, const TensorFinder& find,
                                      ModelSpec* spec, NameMap* names);

// Reads whether rows see what is behind them. An encoder that is said to be causal is refused, and
// so is a recurrent model that is not.
absl::Status ReadGgufDirections(const GgufSource& source, const Family& family, ModelSpec* spec);

// Fills description->pooled where the file's pooling, its classes or its family ask for it.
absl::Status DescribeGgufPooled(const GgufSource& source, const Family& family,
                                const TensorFinder& find, ModelDescription* description);

}  // namespace heddle::engine
