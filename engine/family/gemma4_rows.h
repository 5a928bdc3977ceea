// Rows of the family table for decoders with inputs of single layers and shared keys: Gemma 4.
// Private to engine/family. Thread-safety: pure function.
#pragma once

#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// `gemma3`: the row that they are variants of.
std::vector<Family> Gemma4Rows(const Family& gemma3);

}  // namespace heddle::engine
