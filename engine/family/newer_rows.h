// Rows of the family table for models of 2025 and 2026 that compute what an older row computes,
// under other names and with other defaults. Private to engine/family.
// Thread-safety: pure function.
#pragma once

#include <span>
#include <vector>

#include "engine/family/family_table.h"

namespace heddle::engine {

// `rows`: those of the table so far, of which these are variants.
std::vector<Family> NewerRows(std::span<const Family> rows);

}  // namespace heddle::engine
