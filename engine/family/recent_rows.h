// Rows of the family table for families that came after those of family_table.cc, each a variant of
// one there. Private to engine/family.
// Thread-safety: pure function.
#pragma once

#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// The rows that others are variants of.
struct BaseRows {
  Family llama;
  Family mistral;
  Family mixtral;
  Family olmo2;
  Family gemma2;
  Family granite;
  Family qwen3_moe;
  Family deepseek_v3;
};

std::vector<Family> RecentRows(const BaseRows& base);

}  // namespace heddle::engine
