// The row of the family table for RWKV-7 (kernels/wkv.h). Private to engine/family.
// Thread-safety: pure function.
#pragma once

#include "engine/family/family_table.h"

namespace heddle::engine {

Family RwkvRow(const Family& llama);

}  // namespace heddle::engine
