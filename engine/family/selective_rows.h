// Rows of the family table for families with layers of the first Mamba, selective scans: those that
// have nothing else (Mamba, Falcon-Mamba), and Jamba, with attention in some layers and experts in
// some.
// Private to engine/family. Thread-safety: pure function.
#pragma once

#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// `llama`: the row that they are variants of.
std::vector<Family> SelectiveRows(const Family& llama);

}  // namespace heddle::engine
