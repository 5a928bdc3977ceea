// Rows of the family table for encoders: models whose rows see all of a text, and that write none.
// Private to engine/family. Thread-safety: pure function.
#pragma once

#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// The first is BERT's. `gemma3`: the row of the decoder whose layers EmbeddingGemma has, `llama`
// that of EuroBERT's.
std::vector<Family> EncoderRows(const Family& gemma3, const Family& llama);

absl::Status RefineBert(const JsonSource& config, ModelSpec* spec, NameMap* names);
// Numbers positions from one behind that of padding, as RoBERTa does.
absl::Status NumberBehindPadding(const JsonSource& config, ModelSpec* spec);

// Makes encoder layers of BERT's kind: rows see all of the text, and norms are behind the sums.
void ApplyBert(ModelSpec* spec);

}  // namespace heddle::engine
