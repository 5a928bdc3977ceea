// Rows of the family table for encoders whose scores depend on the distance of two tokens, and for
// those that are BERT, RoBERTa or Llama under other names. Private to engine/family.
// Thread-safety: pure function.
#pragma once

#include <span>
#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// `encoders`: the rows of EncoderRows, of which these are variants.
std::vector<Family> MoreEncoderRows(std::span<const Family> encoders);

}  // namespace heddle::engine
