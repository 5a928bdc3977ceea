// Rows of the family table for encoders of BERT's kind with rotations in place of a table of
// positions: GTE (the later ones) and jina-embeddings-v3. Private to engine/family.
// Thread-safety: pure function.
#pragma once

#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// `bert`: the row that they are variants of.
std::vector<Family> RotaryEncoderRows(const Family& bert);

}  // namespace heddle::engine
