// The rows of the family table for RWKV-7 (kernels/wkv.h). Private to engine/family.
// Thread-safety: pure functions.
#pragma once

#include "engine/family/family_table.h"

namespace heddle::engine {

Family RwkvRow(const Family& llama);
// RWKV-7's time mixes in Qwen2.5 (ARWKV), from GGUF alone.
Family QwenRwkvRow(const Family& llama);

}  // namespace heddle::engine
