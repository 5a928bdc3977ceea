// Rows of the family table for the first families with experts, of which later ones are variants.
// Private to engine/family. Thread-safety: pure function.
#pragma once

#include "engine/family/family_table.h"

namespace heddle::engine {

struct MoeRows {
  Family mixtral;
  Family qwen2_moe;
  Family qwen3_moe;
  Family gpt_oss;
  Family deepseek_v2;
  Family deepseek_v3;
};

// The arguments are the rows that they are variants of.
MoeRows MakeMoeRows(const Family& llama, const Family& mistral, const Family& qwen2);

}  // namespace heddle::engine
