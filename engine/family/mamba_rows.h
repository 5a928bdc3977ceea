// Rows of the family table for families with layers of Mamba-2: those that have nothing else
// (Mamba-2, Codestral Mamba), those with attention in some layers (Bamba), in blocks that are one
// thing each (Nemotron-H), and in every layer beside the recurrence (Falcon-H1).
// Private to engine/family. Thread-safety: pure function.
#pragma once

#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// `llama`: the row that they are variants of.
std::vector<Family> MambaRows(const Family& llama);

}  // namespace heddle::engine
