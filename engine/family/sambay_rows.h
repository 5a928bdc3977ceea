// The row of the family table for SambaY, a decoder whose second half reads what its first half
// keeps: Phi-4-mini-flash-reasoning. Private to engine/family. Thread-safety: pure function.
// Source: Ren et al. 2025, "Decoder-Hybrid-Decoder Architecture for Efficient Reasoning with Long
// Generation".
#pragma once

#include "engine/family/family_table.h"

namespace heddle::engine {

// `llama`: the row that it is a variant of.
Family SambaYRow(const Family& llama);

}  // namespace heddle::engine
