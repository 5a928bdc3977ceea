// Rows of the family table for families with state beside keys and values: short convolutions.
// Private to engine/family. Thread-safety: pure function.
#pragma once

#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// `llama`: the row that they are variants of.
std::vector<Family> HybridRows(const Family& llama);

}  // namespace heddle::engine
