// Row of the family table for Llama 4, which attends in chunks, and beyond them without positions.
// Private to engine/family. Thread-safety: pure function.
#pragma once

#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// `llama`: the row that it is a variant of.
std::vector<Family> Llama4Rows(const Family& llama);

}  // namespace heddle::engine
