// The row of the family table for Phi-1, Phi-1.5 and Phi-2: one layer norm before attention and
// MLP, which both read the stream as it was, and biases everywhere, the output head included.
// Private to engine/family.
// Thread-safety: pure function.
#pragma once

#include "engine/family/family_table.h"

namespace heddle::engine {

// `neox`: the row of GPT-NeoX, of which it is a variant.
Family PhiRow(const Family& neox);

}  // namespace heddle::engine
